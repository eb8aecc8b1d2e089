//! Access lists as Linux keeps them, rewritten at every change of a mode: what the mount is held against,
//! which keeps them otherwise. The functions are those of `fs/posix_acl.c`.

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP: u16 = 4;
const NAMED_GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// Tag, permissions, id.
type Entry = (u16, u16, u32);

pub fn pack(entries: &[Entry]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

fn unpack(list: &[u8]) -> Vec<Entry> {
    let half = |bytes: &[u8]| u16::from_le_bytes(bytes.try_into().unwrap());
    let entry =
        |at: &[u8]| (half(&at[..2]), half(&at[2..4]), u32::from_le_bytes(at[4..].try_into().unwrap()));
    list[4..].chunks_exact(8).map(entry).collect()
}

/// The list that says what nine bits say.
pub fn plain(mode: u32) -> Vec<u8> {
    let bits = |shift: u32| (mode >> shift & 7) as u16;
    pack(&[(OWNER, bits(6), u32::MAX), (GROUP, bits(3), u32::MAX), (OTHER, bits(0), u32::MAX)])
}

/// A list with a mask, and now and then with names, by random numbers below what they are asked for.
pub fn random(below: impl Fn(u64) -> u64) -> Vec<u8> {
    let perm = || below(8) as u16;
    let mut entries = vec![(OWNER, perm(), u32::MAX)];
    entries.extend((0..below(4)).map(|_| (USER, perm(), below(5) as u32)));
    entries.push((GROUP, perm(), u32::MAX));
    let groups = if below(30) == 0 { 500 } else { below(3) };
    entries.extend((0..groups).map(|_| (NAMED_GROUP, perm(), below(5) as u32)));
    entries.extend([(MASK, perm(), u32::MAX), (OTHER, perm(), u32::MAX)]);
    pack(&entries)
}

/// `posix_acl_equiv_mode`: whether nine bits say all of it.
pub fn is_mode(list: &[u8]) -> bool {
    unpack(list).iter().all(|(tag, ..)| [OWNER, GROUP, OTHER].contains(tag))
}

/// The nine bits that a list sets.
pub fn mode(list: &[u8]) -> u32 {
    let entries = unpack(list);
    let of = |wanted: u16| entries.iter().find(|(tag, ..)| *tag == wanted).map(|entry| u32::from(entry.1));
    of(OWNER).unwrap() << 6 | of(MASK).or(of(GROUP)).unwrap() << 3 | of(OTHER).unwrap()
}

/// `posix_acl_chmod`.
pub fn chmod(list: &mut Vec<u8>, mode: u32) {
    let mut entries = unpack(list);
    let class = if entries.iter().any(|(tag, ..)| *tag == MASK) { MASK } else { GROUP };
    for (tag, perm, _) in &mut entries {
        match *tag {
            OWNER => *perm = (mode >> 6 & 7) as u16,
            OTHER => *perm = (mode & 7) as u16,
            tag if tag == class => *perm = (mode >> 3 & 7) as u16,
            _ => {}
        }
    }
    *list = pack(&entries);
}

/// `posix_acl_create`: the access list of what is made under a default list, unless the mode says it all.
pub fn create(default: &[u8], perm: &mut u32) -> Option<Vec<u8>> {
    let kept = *perm & mode(default);
    *perm = *perm & !0o777 | kept;
    let mut access = default.to_vec();
    chmod(&mut access, kept);
    (!is_mode(&access)).then_some(access)
}
