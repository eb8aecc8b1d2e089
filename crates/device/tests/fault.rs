//! Devices that fail as their control file says, on real files.

use larder_device::{
    AlignedBuf, Clock, Device, DeviceError, FaultDevice, OpenMode, Outcome, Request, SystemClock,
};
use larder_format::{ByteLen, DeviceOffset};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const SIZE: u64 = 64 << 20;
const PAGE: u64 = 4096;
const EIO: DeviceError = DeviceError::Io { errno: 5 };
const SOON: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(60);

struct Bed {
    _folder: TempDir,
    control: PathBuf,
    device: FaultDevice,
    told: Arc<Mutex<Vec<String>>>,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let report = Arc::clone(&told);
        let device =
            FaultDevice::open(&path, OpenMode::Exclusive, move |text| report.lock().unwrap().push(text));
        let control = folder.path().join("disk.faults");
        Self { _folder: folder, control, device: device.unwrap(), told }
    }

    fn faults(&self, text: &str) {
        // Another file each time: the clock of a file system may stand still between two writes.
        let new = self.control.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &self.control).unwrap();
    }

    fn well(&self) {
        fs::remove_file(&self.control).unwrap();
    }

    fn submit(&self, request: Request) -> Outcome {
        self.device.submit(request).within(LONG)
    }

    fn write(&self, page: u64, fill: u8) -> Result<(), DeviceError> {
        self.submit(write_request(page, fill)).map(drop)
    }

    fn read(&self, page: u64) -> Result<Vec<u8>, DeviceError> {
        self.submit(read_request(page)).map(|bytes| bytes.to_vec())
    }

    /// The byte that a page is full of.
    fn fill(&self, page: u64) -> u8 {
        let bytes = self.read(page).unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "page {page} is not whole");
        bytes[0]
    }
}

fn write_request(page: u64, fill: u8) -> Request {
    let mut data = AlignedBuf::zeroed(PAGE as usize);
    data.fill(fill);
    Request::Write { offset: DeviceOffset::new(page * PAGE), data: Arc::new(data) }
}

fn read_request(page: u64) -> Request {
    Request::Read { offset: DeviceOffset::new(page * PAGE), len: ByteLen::new(PAGE) }
}

#[test]
fn without_a_control_file_or_with_an_empty_one_nothing_fails() {
    let bed = Bed::new();
    assert!(bed.device.name().starts_with("fault:/"));
    assert_eq!(bed.device.size().get(), SIZE);
    for text in [None, Some("# nothing\n")] {
        text.inspect(|text| bed.faults(text));
        bed.write(3, 7).unwrap();
        bed.submit(Request::Flush).unwrap();
        assert_eq!((bed.fill(3), bed.fill(4)), (7, 0));
    }
    assert!(bed.told.lock().unwrap().is_empty());
}

#[test]
fn errors_hit_what_the_line_names_from_when_it_is_there_until_it_is_gone() {
    let bed = Bed::new();
    bed.faults("error read at=8K..12K\nerror write count=1\nerror flush after=1");
    assert_eq!((bed.read(1).is_ok(), bed.read(2), bed.read(3).is_ok()), (true, Err(EIO), true));
    assert_eq!((bed.write(2, 1), bed.write(2, 2)), (Err(EIO), Ok(())));
    assert!(bed.submit(Request::Flush).is_ok());
    assert_eq!(bed.submit(Request::Flush).unwrap_err(), EIO);
    bed.well();
    assert_eq!(bed.fill(2), 2, "a write that failed changed nothing");
    assert_eq!(bed.submit(Request::Flush).unwrap_err(), EIO, "a flush that failed is final");
    bed.device.forgive();
    assert!(bed.submit(Request::Flush).is_ok());
}

#[test]
fn a_rate_strikes_about_as_many_and_the_same_again_with_the_same_seed() {
    let struck = |seed: u64| {
        let bed = Bed::new();
        bed.faults(&format!("error read rate=0.25 seed={seed}"));
        (0..400).map(|_| bed.read(0).is_err()).collect::<Vec<_>>()
    };
    let (first, second) = (struck(1), struck(2));
    let count = first.iter().filter(|struck| **struck).count();
    assert!((60..=140).contains(&count), "{count}");
    assert_eq!(first, struck(1));
    assert_ne!(first, second);
}

#[test]
fn what_hangs_is_performed_when_the_line_is_gone_and_holds_up_nothing_else() {
    let bed = Bed::new();
    bed.faults("hang write");
    let hung: Vec<_> = (0..20).map(|page| bed.device.submit(write_request(page, 9))).collect();
    assert!(bed.read(30).is_ok());
    let Err(one) = bed.device.perform(write_request(40, 9), SOON) else { panic!("it hangs") };
    assert_eq!(bed.device.submit(write_request(50, 9)).within(SOON).unwrap_err(), DeviceError::Overdue);
    assert_eq!(bed.fill(0), 0);
    bed.well();
    hung.into_iter().chain([one]).for_each(|pending| drop(pending.within(LONG).unwrap()));
    assert_eq!((bed.fill(19), bed.fill(40)), (9, 9));
}

#[test]
fn a_device_that_is_abandoned_lets_go_of_all_that_hangs_or_waits() {
    let bed = Bed::new();
    bed.faults("hang");
    let hung: Vec<_> = (0..20).map(|page| bed.device.submit(read_request(page))).collect();
    bed.device.abandon();
    for pending in hung {
        assert_eq!(pending.within(LONG).unwrap_err(), DeviceError::Gone);
    }
    assert_eq!(bed.read(0), Err(DeviceError::Gone));
}

#[test]
fn delayed_requests_take_as_long_as_the_line_says() {
    let bed = Bed::new();
    bed.faults("delay read ms=40 jitter=20");
    bed.write(0, 1).unwrap();
    let clock = SystemClock::new();
    bed.read(0).unwrap();
    let before = clock.monotonic();
    assert!(before >= Duration::from_millis(40));
    let outcome = match bed.device.perform(read_request(0), SOON) {
        Err(late) => late.within(LONG),
        // This thread had to wait longer, for a processor.
        Ok(outcome) => outcome,
    };
    assert_eq!(outcome.unwrap()[0], 1);
    assert!(clock.monotonic() - before >= Duration::from_millis(40));
}

#[test]
fn rot_shows_the_same_flipped_bit_in_every_read_until_the_page_is_written_again() {
    let bed = Bed::new();
    (0..512).for_each(|page| bed.write(page, 5).unwrap());
    bed.faults("rot at=4K..8K\nrot rate=0.1 seed=3");
    let flipped = |page| {
        let bytes = bed.read(page).unwrap();
        bytes.iter().map(|byte| (byte ^ 5).count_ones()).sum::<u32>()
    };
    assert_eq!(bed.read(1), bed.read(1));
    assert_eq!((flipped(1) % 2, bed.read(1).unwrap() == bed.read(2).unwrap()), (1, false));
    let rotten = (2..512).filter(|page| flipped(*page) > 0).collect::<Vec<_>>();
    assert!((25..=80).contains(&rotten.len()), "{}", rotten.len());
    bed.write(rotten[0], 5).unwrap();
    assert_eq!((flipped(rotten[0]), flipped(rotten[1])), (0, 1));
    bed.well();
    assert_eq!(bed.fill(1), 5, "what is on the device is well");
}

#[test]
fn writes_are_lost_or_go_astray_and_flushes_lie() {
    let bed = Bed::new();
    bed.faults("lose at=0..4K\nmisdirect at=4K..8K to=1M\nlie\nmisdirect at=8K..12K to=1G");
    (0..4).for_each(|page| bed.write(page, 1).unwrap());
    bed.submit(Request::Flush).unwrap();
    assert_eq!([0, 1, 2, 3, 256].map(|page| bed.fill(page)), [0, 0, 0, 1, 1]);
}

#[test]
fn old_data_is_shown_as_it_was_when_the_line_came_whatever_is_written() {
    let bed = Bed::new();
    (0..3).for_each(|page| bed.write(page, 1).unwrap());
    bed.faults("stale at=0..8K");
    (0..3).for_each(|page| bed.write(page, 2).unwrap());
    bed.faults("stale at=0..8K\ndelay ms=0");
    bed.write(0, 3).unwrap();
    assert_eq!([0, 1, 2].map(|page| bed.fill(page)), [1, 1, 2], "a line that stays remembers");
    bed.well();
    assert_eq!([0, 1, 2].map(|page| bed.fill(page)), [3, 2, 2]);
}

#[test]
fn a_device_is_gone_or_ends_early() {
    let bed = Bed::new();
    bed.faults("shrink to=1M");
    assert_eq!(bed.device.size().get(), 1 << 20);
    assert_eq!((bed.read(255).is_ok(), bed.read(256)), (true, Err(DeviceError::Range)));
    assert_eq!(bed.write(256, 1), Err(DeviceError::Range));
    bed.faults("gone");
    assert_eq!(bed.read(0), Err(DeviceError::Gone));
    assert_eq!(bed.submit(Request::Flush).unwrap_err(), DeviceError::Gone);
    bed.well();
    assert_eq!((bed.device.size().get(), bed.read(256).is_ok()), (SIZE, true));
}

#[test]
fn malformed_lines_are_reported_once_by_file_and_line_and_the_others_are_obeyed() {
    let bed = Bed::new();
    bed.faults("eror\n\nerror read");
    assert_eq!((bed.read(0), bed.read(0)), (Err(EIO), Err(EIO)));
    let told = bed.told.lock().unwrap().clone();
    let begins = format!("{}: line 1: there is no fault \"eror\"", bed.control.display());
    assert!(matches!(&told[..], [one] if one.starts_with(&begins)), "{told:?}");
    fs::write(&bed.control, [0xff, 0xfe, b'\n', 0, b'=', 0xc3]).unwrap();
    assert!(bed.read(0).is_ok());
    fs::write(&bed.control, vec![b'x'; 1 << 20]).unwrap();
    assert!(bed.read(0).is_ok());
    assert!(bed.told.lock().unwrap().iter().any(|text| text.contains("only the first 65536 bytes")));
}

#[test]
fn a_disk_with_one_arm_answers_no_sooner_than_it_would_and_the_file_is_told_how_well_that_went() {
    let bed = Bed::new();
    bed.write(9000, 1).unwrap();
    bed.faults("disk rpm=5400 seek=20..20 span=64M wcache=0");
    assert_eq!(bed.device.size(), ByteLen::new(SIZE), "it looks at the line");
    let clock = SystemClock::new();
    for page in [9000, 100, 16_000] {
        let before = clock.monotonic();
        assert_eq!(bed.fill(page), u8::from(page == 9000));
        assert!(clock.monotonic() - before >= Duration::from_millis(20));
    }
    let before = clock.monotonic();
    bed.write(300, 7).unwrap();
    bed.submit(Request::Flush).unwrap();
    assert!(clock.monotonic() - before >= Duration::from_millis(20));
    // Nobody waits for what was held back when the line goes, or the device does.
    let held: Vec<_> = (0..30).map(|i| bed.device.submit(read_request(i * 500))).collect();
    bed.well();
    assert_eq!(bed.fill(300), 7);
    held.into_iter().for_each(|pending| drop(pending.within(LONG).unwrap()));
    let told = bed.told.lock().unwrap().clone();
    // The last read may have come before the line's end was noticed.
    let begins = format!("{}: of 3", bed.control.display());
    assert!(matches!(&told[..], [one, ..] if one.starts_with(&begins)), "{told:?}");
    bed.faults("disk seek=5000..5000");
    bed.device.size();
    let held: Vec<_> = (0..30).map(|i| bed.device.submit(read_request(i * 500))).collect();
    bed.device.abandon();
    for pending in held {
        assert!(matches!(pending.within(LONG), Ok(_) | Err(DeviceError::Gone)));
    }
}
