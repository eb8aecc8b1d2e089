//! The container of a pool's devices: see `tests/golden/README.md`.

use larder_format::{ByteLen, DeviceOffset};
use larder_sim::DeviceImage;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

const MAGIC: &[u8] = b"larder golden 1\n";
const PAGE: usize = 4096;
/// As small as zstd makes it; these are made once.
const LEVEL: i32 = 19;

pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden"))
}

/// Names of all images, without `.img.zst`, sorted.
pub fn names() -> Vec<String> {
    let names =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> =
        names.filter_map(|name| Some(name.strip_suffix(".img.zst")?.to_owned())).collect();
    names.sort();
    names
}

/// The format version that a name begins with: `v9-raidz1`.
pub fn version_of(name: &str) -> u32 {
    let version = name.strip_prefix('v').and_then(|rest| rest.split_once('-')?.0.parse().ok());
    version.unwrap_or_else(|| panic!("{name} does not begin with a format version"))
}

/// The devices of an image, and the manifest beside it.
pub fn load(name: &str) -> (Vec<DeviceImage>, String) {
    let packed = fs::read(folder().join(format!("{name}.img.zst"))).unwrap();
    let manifest = fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap();
    (decode(&zstd::decode_all(&packed[..]).unwrap()), manifest)
}

/// Puts an image that is not there yet beside the others; gives its compressed size.
///
/// # Panics
/// When there is one of this name: golden images are added, never made anew.
pub fn add(name: &str, devices: &[DeviceImage], manifest: &str) -> usize {
    let packed = zstd::encode_all(&encode(devices)[..], LEVEL).unwrap();
    for (ending, bytes) in [("img.zst", &packed[..]), ("txt", manifest.as_bytes())] {
        let path = folder().join(format!("{name}.{ending}"));
        let made = File::create_new(&path);
        let mut file = made.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        file.write_all(bytes).unwrap();
    }
    packed.len()
}

fn encode(devices: &[DeviceImage]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend((devices.len() as u32).to_le_bytes());
    for device in devices {
        let size = device.size().get();
        let pages = (0..size / PAGE as u64)
            .map(|page| (page as u32, device.read(DeviceOffset::new(page * PAGE as u64), PAGE)))
            .filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        let pages: Vec<_> = pages.collect();
        out.extend(size.to_le_bytes());
        out.extend((pages.len() as u32).to_le_bytes());
        pages.iter().for_each(|(page, _)| out.extend(page.to_le_bytes()));
        pages.iter().for_each(|(_, bytes)| out.extend_from_slice(bytes));
    }
    out
}

fn decode(bytes: &[u8]) -> Vec<DeviceImage> {
    let mut rest = bytes.strip_prefix(MAGIC).expect("it begins with its magic");
    let mut take = |len: usize| {
        let (taken, left) = rest.split_at(len);
        rest = left;
        taken
    };
    let short = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let devices = (0..short(take(4))).map(|_| {
        let size = u64::from_le_bytes(take(8).try_into().unwrap());
        let mut device = DeviceImage::blank(ByteLen::new(size));
        let count = short(take(4)) as usize;
        let pages: Vec<u32> = take(4 * count).chunks_exact(4).map(short).collect();
        for page in pages {
            device.write(DeviceOffset::new(u64::from(page) * PAGE as u64), take(PAGE));
        }
        device
    });
    let devices = devices.collect();
    assert!(rest.is_empty(), "bytes follow the last device");
    devices
}

#[test]
fn what_is_packed_unpacks_to_the_same() {
    let mut device = DeviceImage::blank(ByteLen::new(1 << 20));
    device.write(DeviceOffset::new(5000), &[7; 9000]);
    let devices = [device, DeviceImage::blank(ByteLen::new(2 << 20))];
    assert!(decode(&encode(&devices)) == devices);
}
