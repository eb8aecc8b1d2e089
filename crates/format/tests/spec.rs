//! Holds `SPEC.md` against the code, both ways: what the code has must be in the tables, and what the
//! tables say must be so. What to compare is found by reading the crate's sources, so that a new
//! structure, constant or enumeration without its table fails here.

use larder_format::field::{Field, FieldInfo};
use larder_format::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const SPEC: &str = include_str!("../SPEC.md");

/// A table of the SPEC: the heading above it, its columns' names, its rows.
struct Table {
    heading: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn has_columns(&self, columns: &[&str]) -> bool {
        self.columns.len() >= columns.len() && self.columns.iter().zip(columns).all(|(a, b)| a == b)
    }
}

fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.trim().replace('`', "")).collect()
}

fn tables() -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let mut heading = String::new();
    let mut inside = false;
    for line in SPEC.lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim().to_owned();
        }
        if !line.starts_with('|') {
            inside = false;
        } else if !inside {
            inside = true;
            tables.push(Table { heading: heading.clone(), columns: cells(line), rows: Vec::new() });
        } else if !line.starts_with("|---") {
            tables.last_mut().expect("begun above").rows.push(cells(line));
        }
    }
    tables
}

/// The crate's sources: module and text.
fn sources() -> Vec<(String, String)> {
    fn collect(folder: &Path, into: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).expect("the sources are there") {
            let path = entry.expect("a folder's entry").path();
            let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() {
                collect(&path, into);
            } else if stem != "tests" {
                into.push((stem, fs::read_to_string(&path).expect("text")));
            }
        }
    }
    let mut found = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found
}

/// Fields by name: offset and size.
type Fields = BTreeMap<String, (usize, usize)>;

/// The structures that the SPEC documents: `### Name: SIZE bytes` above a table of fields.
fn documented_structures() -> BTreeMap<String, (usize, Fields)> {
    let mut found = BTreeMap::new();
    for table in tables().iter().filter(|table| table.has_columns(&["field", "offset", "size", "meaning"])) {
        let (name, size) = table.heading.split_once(": ").expect("a heading with a size");
        let size = size.strip_suffix(" bytes").expect("a size in bytes").parse().expect("a number");
        let number = |cell: &str| cell.parse().unwrap_or_else(|_| panic!("{name}: {cell} is no number"));
        let fields: Fields =
            table.rows.iter().map(|row| (row[0].clone(), (number(&row[1]), number(&row[2])))).collect();
        assert_eq!(fields.len(), table.rows.len(), "{name} has a field twice");
        assert!(table.rows.iter().all(|row| row.len() == 4 && !row[3].is_empty()), "{name}: a field unsaid");
        assert!(found.insert(name.to_owned(), (size, fields)).is_none(), "{name} has two tables");
    }
    found
}

fn fields(infos: &[FieldInfo]) -> Fields {
    infos.iter().map(|info| (info.name.to_owned(), (info.offset, info.size))).collect()
}

macro_rules! structures {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((stringify!($name), larder_format::$module::$name::SIZE, fields(larder_format::$module::$name::FIELDS))),*]
    };
}

macro_rules! numbers {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), larder_format::$module::$name as u128)),*]
    };
}

/// Structures made by `layout!`, by name.
fn coded_structures() -> BTreeMap<String, (usize, Fields)> {
    let list = structures![
        acl::AclRecord,
        bookmark::BookmarkHead,
        commit_record::CommitRecordHead,
        commit_record::CommitRecordRow,
        cached::SummaryHead,
        cached::CachedBlock,
        cached::CountsHead,
        label::LabelHead,
        label::HeartbeatHead,
        root::RootHead,
        root::RootGroupEntry,
        root::RootDeviceEntry,
        root::RootImport,
        segment::SegmentHead,
        segment::DescriptorHead,
        segment::StripeHead,
        block::BlockHeader,
        node::NodeHead,
        node::LeafEntry,
        node::InnerEntry,
        tables::DatasetHead,
        tables::SnapshotHead,
        tables::FreeingRecord,
        tables::HoldHead,
        property::PropertyHead,
        tables::BadSlotRecord,
        tables::RemainsRecord,
        tables::ReceivingHead,
        trash::TrashHead,
        ledger::EventHead,
        ledger::CommandHead,
        ledger::DamageRecord,
        run::PageHead,
        run::RunHead,
        index::PrintsHead,
        index::PartHead,
        items::InodeRecord,
        items::ExtentRecord,
        log::LogHead,
        log::OpHead,
    ];
    list.into_iter().map(|(name, size, fields)| (name.to_owned(), (size, fields))).collect()
}

/// A structure's name, the bytes of a value all of whose fields differ, and each field's bytes.
type Composite = (&'static str, Vec<u8>, Vec<(&'static str, Vec<u8>)>);

/// Structures without `layout!`.
fn composites() -> Vec<Composite> {
    fn stored<F: Field>(value: &F) -> Vec<u8> {
        let mut out = vec![0; F::SIZE];
        value.store(&mut out);
        out
    }
    let place = Place {
        segment: SegmentId::new(0x1112_1314_1516_1718),
        column: 0x21,
        offset: 0x31_3233 * BLOCK_STEP,
        stored: 0x4142_4344,
    };
    let ptr = BlockPtr { id: BlockId::new(0x5152_5354_5556_5758), place };
    let layout = segment::Layout::new(4, 1, 2).expect("a layout");
    let rule = label::GroupRule { word: label::LayoutKind::Raidz, layout };
    let slot = segment::Slot { device: DeviceIndex::new(0x6162), index: SlotIndex::new(0x7172_7374) };
    let key = node::Key::new(0x0102_0304_0506_0708, 9, 0x0a0b_0c0d_0e0f_1011);
    let features = label::Features { compatible: 1 << 40, read_compatible: 2 << 40, incompatible: 3 << 40 };
    let time = Timestamp { secs: -2, nanos: 0x0102_0304 };
    let page = run::PageRef { first: BlockId::new(0x8182_8384_8586_8788), ptr };
    let footprint = run::Footprint { segment: place.segment, blocks: 0x9192_9394, bytes: 0xa1a2_a3a4 };
    vec![
        ("Timestamp", stored(&time), vec![("secs", stored(&time.secs)), ("nanos", stored(&time.nanos))]),
        (
            "Place",
            stored(&place),
            vec![
                ("segment", stored(&place.segment)),
                ("offset", vec![0x33, 0x32, 0x31]),
                ("column", vec![place.column]),
                ("stored", stored(&place.stored)),
            ],
        ),
        ("BlockPtr", stored(&ptr), vec![("id", stored(&ptr.id)), ("place", stored(&place))]),
        ("Layout", stored(&layout), vec![("k", vec![4]), ("r", vec![1]), ("m", vec![2])]),
        ("GroupRule", stored(&rule), vec![("word", vec![rule.word as u8]), ("layout", stored(&layout))]),
        ("Slot", stored(&slot), vec![("device", stored(&slot.device)), ("index", stored(&slot.index))]),
        (
            "Key",
            stored(&key),
            vec![("object", stored(&key.object)), ("kind", vec![9]), ("offset", stored(&key.offset))],
        ),
        (
            "Features",
            stored(&features),
            vec![
                ("compatible", stored(&features.compatible)),
                ("read_compatible", stored(&features.read_compatible)),
                ("incompatible", stored(&features.incompatible)),
            ],
        ),
        ("PageRef", stored(&page), vec![("first", stored(&page.first)), ("ptr", stored(&ptr))]),
        (
            "Footprint",
            stored(&footprint),
            vec![
                ("segment", stored(&footprint.segment)),
                ("blocks", stored(&footprint.blocks)),
                ("bytes", stored(&footprint.bytes)),
            ],
        ),
    ]
}

#[test]
fn every_structure_in_the_sources_is_compared() {
    let mut declared = BTreeSet::new();
    for (_, text) in sources() {
        // Declarations start a line; in comments the word stands elsewhere.
        for invocation in text.split("\nlayout! {").skip(1) {
            let (_, rest) = invocation.split_once("pub struct ").expect("a public structure");
            declared.insert(rest.split('[').next().expect("a name").to_owned());
        }
    }
    assert_eq!(declared, coded_structures().into_keys().collect());
}

#[test]
fn every_field_has_its_line_and_every_line_its_field() {
    let mut documented = documented_structures();
    for (name, coded) in coded_structures() {
        let table = documented.remove(&name).unwrap_or_else(|| panic!("SPEC.md has no table for {name}"));
        assert_eq!(table, coded, "{name}");
    }
    for (name, bytes, parts) in composites() {
        let (size, fields) =
            documented.remove(name).unwrap_or_else(|| panic!("SPEC.md has no table for {name}"));
        assert_eq!((size, fields.len()), (bytes.len(), parts.len()), "{name}");
        for (field, expected) in parts {
            let &(offset, size) = fields.get(field).unwrap_or_else(|| panic!("{name} has no field {field}"));
            assert_eq!(bytes[offset..offset + size], expected, "{name}.{field}");
        }
    }
    assert!(documented.is_empty(), "tables of nothing: {:?}", documented.keys());
}

/// Every public number of the crate.
fn coded_constants() -> BTreeMap<String, u128> {
    let list = numbers![
        acl::ACL_NO_ID,
        acl::ACL_VERSION,
        acl::MAX_ACL_ENTRIES,
        block::BLOCK_MAGIC,
        block::BLOCK_OVERHEAD,
        block::FRAME,
        block::FRAME_SHIFT,
        block::FRAME_SUM,
        checksum::KEY_LEN,
        checksum::SUM_LEN,
        commit_record::COMMIT_RECORD_MAGIC,
        commit_record::COMMIT_RECORD_MAX,
        commit_record::ROW_GONE,
        ids::BLOCK_STEP,
        ids::MAX_COUNT,
        index::RIBBON_WIDTH,
        index::FILTER_PER_PAGE,
        index::MAX_FILTER_PAGES,
        index::LINE,
        index::MAX_PRINTS,
        index::PRINTS_PAGE,
        items::ENTRY,
        items::EXTENT,
        items::FIRST_COOKIE,
        items::INODE,
        items::MAX_COLLISIONS,
        items::MAX_DATASET,
        items::MAX_FILE,
        items::MAX_INODE,
        items::LAST_INODE,
        items::INODE_LEASE,
        items::MAX_NAME,
        items::MAX_RECORD,
        items::MAX_TARGET,
        items::MAX_VALUE,
        items::MAX_XATTR,
        items::NAME_SALT_LEN,
        items::MIN_RECORD_SIZE,
        items::ORPHAN,
        items::SYMLINK,
        items::XATTR,
        items::XATTR_PIECE,
        items::XATTR_PIECES,
        label::FORMAT_VERSION,
        label::HEARTBEAT_MAGIC,
        label::HEARTBEAT_OFFSET,
        label::LABEL_AREA,
        label::LABEL_LEN,
        label::LABEL_MAGIC,
        label::MAX_ASHIFT,
        label::MAX_NAME,
        label::MIN_ASHIFT,
        label::MIN_DEVICE,
        label::RING_OFFSET,
        label::RING_SLOT,
        label::RING_SLOTS,
        ledger::MAX_TEXT,
        node::MAX_CHILDREN,
        node::MAX_LEVEL,
        node::MAX_VALUE,
        node::NODE_MAX,
        root::MAX_HISTORY,
        root::STRIDE,
        root::SEGMENT_STRIDE,
        root::ROOT_MAGIC,
        root::CACHE_DEVICE,
        root::GROUP_LEAVING,
        cached::SUMMARY_MAGIC,
        cached::CACHE_UNIT,
        cached::SUMMARY_PART,
        run::DESCRIPTOR_REFS,
        ids::MAX_PLACES,
        run::PAGE_MAX,
        run::REFS_PER_PAGE,
        run::RESTART_EVERY,
        segment::DESCRIPTOR_LEN,
        segment::CLASSES,
        ids::MAX_COLUMNS,
        segment::MAX_PARITY_DATA,
        ids::MAX_SLOT,
        segment::MIN_SLOT,
        segment::STRIPE_MAGIC,
        segment::STRIPE_STEP,
        segment::SEGMENT_MAGIC,
        tables::ATTACHED_MAX,
        tables::PIECE_MAX,
        tables::SNAPSHOT_DEFERRED,
        tables::SNAPSHOT_HIDDEN,
        tables::RECEIVING_RESUMABLE,
        tables::RECEIVING_MADE,
        tables::TAG_MAX,
        tables::SECRET_LEN,
        tables::TABLE_KIND,
    ];
    let mut found: BTreeMap<_, _> = list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    found.insert("label::COPIES".into(), label::Features::COPIES.into());
    found.insert("label::IDENTITY".into(), label::Features::IDENTITY.into());
    found.insert("label::FRAMES".into(), label::Features::FRAMES.into());
    found.insert("label::PLACED".into(), label::Features::PLACED.into());
    found.insert("label::ALIASES".into(), label::Features::ALIASES.into());
    found.insert("items::HAS_XATTRS".into(), items::Inode::HAS_XATTRS.into());
    found.insert("items::HAS_TAIL".into(), items::Inode::HAS_TAIL.into());
    found.insert("items::BY_CONTENT".into(), items::Inode::BY_CONTENT.into());
    found.insert("items::HALF_CUT".into(), items::Inode::HALF_CUT.into());
    found.insert("items::ROOT_INODE".into(), items::ROOT_INODE.get().into());
    found
}

#[test]
fn every_constant_is_documented_with_its_value() {
    let coded = coded_constants();
    let mut declared = BTreeSet::new();
    for (module, text) in sources() {
        let module = if module == "page" { "run".to_owned() } else { module };
        for line in text.lines() {
            let Some((name, rest)) =
                line.trim().strip_prefix("pub const ").and_then(|rest| rest.split_once(": "))
            else {
                continue;
            };
            let numeric = ["u8 ", "u16 ", "u32 ", "u64 ", "usize ", "InodeId "];
            if name != "SIZE" && numeric.iter().any(|kind| rest.starts_with(kind)) {
                declared.insert(format!("{module}::{name}"));
            }
        }
    }
    assert_eq!(declared, coded.keys().cloned().collect(), "the sources, and the list of this test");

    let mut documented = BTreeSet::new();
    for row in
        tables().iter().filter(|t| t.has_columns(&["constant", "value", "meaning"])).flat_map(|t| &t.rows)
    {
        let name = &row[0];
        let known: Vec<_> = coded
            .iter()
            .filter(|(path, _)| *path == name || path.split_once("::").is_some_and(|(_, last)| last == name))
            .collect();
        let [(path, coded)] = known[..] else { panic!("{name} names {} constants", known.len()) };
        let value = match row[1].strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            Some(magic) => magic.bytes().rev().fold(0, |value, byte| value << 8 | u128::from(byte)),
            None => row[1].parse().unwrap_or_else(|_| panic!("{name}: {} is no number", row[1])),
        };
        assert_eq!(value, *coded, "{path}");
        assert!(documented.insert(path.clone()), "{path} is documented twice");
    }
    assert_eq!(documented, declared);
}

/// Numbers and names under each heading with such a table.
fn documented_numbers() -> BTreeMap<String, BTreeMap<u64, String>> {
    let tables = tables().into_iter().filter(|table| table.has_columns(&["number", "name"]));
    let numbered = |row: Vec<String>| (row[0].parse().expect("a number"), row[1].clone());
    tables.map(|table| (table.heading, table.rows.into_iter().map(numbered).collect())).collect()
}

#[test]
fn every_enumeration_is_documented_with_its_numbers() {
    let mut documented = documented_numbers();
    documented.remove("LogOp");
    let mut declared: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    for (_, text) in sources() {
        for part in text.split("#[repr(u").skip(1) {
            let Some((_, rest)) = part.split_once(")]\npub enum ") else { continue };
            let (name, rest) = rest.split_once(" {").expect("variants");
            let (body, _) = rest.split_once("\n}").expect("an end");
            let variants =
                body.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "));
            let variants =
                variants.map(|(name, number)| (number.parse().expect("a number"), name.to_owned()));
            declared.insert(name.to_owned(), variants.collect());
        }
    }
    assert!(declared.len() >= 8, "the sources were not understood");
    assert_eq!(documented, declared);
}

#[test]
fn marks_have_their_bits() {
    let table = tables().into_iter().find(|table| table.heading == "Marks").expect("a table");
    let bit = |name: &str| {
        let row = table.rows.iter().find(|row| row[1] == name).unwrap_or_else(|| panic!("{name}"));
        1u8 << row[0].parse::<u32>().expect("a bit")
    };
    let named =
        [("SHARED", run::Marks::SHARED), ("INDEXED", run::Marks::INDEXED), ("DEAD", run::Marks::DEAD)];
    for (name, marks) in named {
        let mut page = run::PageBuilder::new(run::RunId::new(1));
        let print = (marks == run::Marks::INDEXED).then_some(Fingerprint::new([7; 16]));
        page.push(BlockId::new(5), &run::Delta { set: marks, print, ..run::Delta::NONE });
        // Head, one restart, then the entry: tag, distance, marks set, marks cleared, fingerprint.
        let page = page.finish();
        let (entry, rest) = page[run::PageHead::SIZE + 2..].split_at(4);
        assert_eq!(entry, [1 << 3, 0, bit(name), 0], "{name}");
        assert_eq!(rest, vec![7; if print.is_some() { 16 } else { 0 }], "{name}");
    }
}

/// Walks an operation's bytes by the fields that the SPEC lists; returns what is left.
fn walk<'a>(mut bytes: &'a [u8], fields: &str) -> &'a [u8] {
    fn skip(bytes: &[u8], len: usize) -> &[u8] {
        bytes.get(len..).expect("an operation holds all of its fields")
    }
    for field in fields.split(", ") {
        let kind = field.split(' ').next_back().expect("a word");
        let (kind, absent) = match kind.strip_suffix('?') {
            None => (kind, false),
            Some(kind) => {
                let present = bytes[0];
                assert!(present <= 1, "{field}");
                bytes = skip(bytes, 1);
                (kind, present == 0)
            }
        };
        if absent {
            continue;
        }
        let len = match kind {
            "u8" | "flag" => 1,
            "u16" => 2,
            "u32" => 4,
            "u64" | "size" => 8,
            "time" => Timestamp::SIZE,
            "name" => 1 + usize::from(bytes[0]),
            "bytes" => 4 + u32::load(bytes) as usize,
            "resize" => 1 + if bytes[0] == 0 { 0 } else { 8 },
            other => panic!("{other} is not explained"),
        };
        bytes = skip(bytes, len);
    }
    bytes
}

#[test]
fn operations_are_laid_out_as_documented() {
    use larder_format::acl::{ACL_NO_ID, Acl, AclEntry, AclTag};
    use larder_format::items::FileKind;
    use larder_format::ops::*;
    let time = Timestamp { secs: 1, nanos: 2 };
    let (inode, parent, name) = (InodeId::new(9), InodeId::new(1), b"name".to_vec());
    let set_attr = |perm, resize, atime| {
        LogOp::SetAttr(SetAttr {
            inode,
            perm,
            uid: None,
            gid: Some(1),
            resize,
            atime,
            mtime: Some(time),
            btime: None,
            ctime: time,
        })
    };
    let set_xattr =
        |value, perm| LogOp::SetXattr(SetXattr { inode, name: b"user.x".to_vec(), value, perm, time });
    let entry = |tag| AclEntry { tag, perm: 5, id: ACL_NO_ID };
    let acl = Acl::new([AclTag::Owner, AclTag::Group, AclTag::Other].map(entry).to_vec()).ok();
    let create = |acl| {
        LogOp::Create(Create {
            inode,
            parent,
            name: name.clone(),
            kind: FileKind::Symlink,
            perm: 0o777,
            uid: 1,
            gid: 2,
            rdev: 3,
            target: b"there".to_vec(),
            acl,
            time,
        })
    };
    let samples = [
        create(None),
        create(acl),
        LogOp::Link(Link { inode, parent, name: name.clone(), time }),
        LogOp::Unlink(Unlink { parent, name: name.clone(), directory: true, time }),
        LogOp::Rename(Rename {
            parent,
            name,
            new_parent: inode,
            new_name: b"other".to_vec(),
            exchange: false,
            time,
        }),
        set_attr(None, None, None),
        set_attr(Some(0o600), Some(Resize::Cut(7)), Some(time)),
        set_attr(Some(0o600), Some(Resize::Grow(7)), Some(time)),
        set_xattr(None, Some(0o600)),
        set_xattr(Some(b"value".to_vec()), None),
        LogOp::Write(Write { inode, offset: 1, data: b"data".to_vec(), size: 5, mtime: time }),
        LogOp::Zero(Zero { inode, offset: 1, len: 2, time }),
    ];
    let table = tables().into_iter().find(|table| table.heading == "LogOp").expect("a table");
    let mut seen = BTreeSet::new();
    for op in samples {
        let bytes = op.encode();
        let shown = format!("{op:?}");
        let name = shown.split('(').next().expect("a name");
        let row = table.rows.iter().find(|row| row[1] == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(row[0], bytes[0].to_string(), "{name}");
        assert_eq!(walk(&bytes[1..], &row[2]), [], "{name} has more than its fields");
        seen.insert(name.to_owned());
    }
    assert_eq!(seen, table.rows.iter().map(|row| row[1].clone()).collect());
}

#[test]
fn links_lead_to_headings() {
    let slug = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    let headings: BTreeSet<String> = SPEC
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| slug(line.trim_start_matches('#').trim()))
        .collect();
    for link in SPEC.split("](#").skip(1) {
        let target = link.split(')').next().expect("an end");
        assert!(headings.contains(target), "#{target} is no heading");
    }
}
