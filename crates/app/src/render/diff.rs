//! Differences between snapshots, as zfs-diff(8) writes them.

use crate::api::diff::{Change, Kind, Path};
use serde_json::{Value, json};

/// Form of a line.
#[derive(Debug, Clone, Copy, Default)]
pub struct Form {
    /// A column with the type.
    pub classified: bool,
    /// Tabs between all columns.
    pub scripted: bool,
    /// A column with the time of the change.
    pub timed: bool,
    /// Bytes of names as they are.
    pub plain: bool,
}

/// One line, with its end. `at` is where the dataset is mounted.
pub fn line(change: &Change, at: &str, form: Form) -> Vec<u8> {
    let mut out = Vec::new();
    if form.timed {
        out.extend(format!("{:10}.{:09}\t", change.ctime.0, change.ctime.1).into_bytes());
    }
    let sign = match change.kind {
        Kind::Modified => 'M',
        Kind::Added => '+',
        Kind::Removed => '-',
        Kind::Renamed => 'R',
    };
    out.extend(format!("{sign}\t").into_bytes());
    if form.classified {
        out.extend(format!("{}\t", change.file).into_bytes());
    }
    let path = |out: &mut Vec<u8>, path: &Option<Path>| {
        write_name(out, at.trim_end_matches('/').as_bytes(), form.plain);
        write_name(out, path.as_ref().map_or(b"?", Path::bytes), form.plain);
    };
    match change.kind {
        Kind::Renamed => {
            path(&mut out, &change.old);
            out.extend_from_slice(if form.scripted { b"\t" } else { b" -> " });
            path(&mut out, &change.new);
        }
        Kind::Removed => path(&mut out, &change.old),
        Kind::Modified if change.links > 0 => path(&mut out, &change.old),
        Kind::Modified | Kind::Added => path(&mut out, &change.new),
    }
    if change.links != 0 {
        out.extend(format!("\t({:+})", change.links).into_bytes());
    }
    out.push(b'\n');
    out
}

/// As zfs does it: whatever is not visible ASCII, and backslashes, in four octal digits.
pub fn write_name(out: &mut Vec<u8>, name: &[u8], plain: bool) {
    for &byte in name {
        match byte {
            _ if plain => out.push(byte),
            b'\\' | 0..=b' ' | 0x7f.. => out.extend(format!("\\{byte:04o}").into_bytes()),
            _ => out.push(byte),
        }
    }
}

/// One object. A name that is not UTF-8 has its bytes beside it.
pub fn json(change: &Change, at: &str) -> Value {
    let full = |path: &Path| [at.trim_end_matches('/').as_bytes(), path.bytes()].concat();
    let text = |path: &Path| String::from_utf8_lossy(&full(path)).into_owned();
    let all = |paths: &[Path]| paths.iter().map(text).collect::<Vec<_>>();
    let mut object = json!({
        "change": change.kind,
        "type": change.file.to_string(),
        "inode": change.inode,
        "old_path": change.old.as_ref().map(text),
        "path": change.new.as_ref().map(text),
        "links": change.links,
        "ctime": change.ctime.0,
        "ctime_nsec": change.ctime.1,
        "lost_names": all(&change.lost_names),
        "new_names": all(&change.new_names),
    });
    for (key, path) in [("old_path_bytes", &change.old), ("path_bytes", &change.new)] {
        if let Some(path @ Path::Bytes(_)) = path {
            object[key] = json!(full(path));
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: Kind, old: &[u8], new: &[u8]) -> Change {
        let path = |bytes: &[u8]| (!bytes.is_empty()).then(|| Path::from(bytes.to_vec()));
        Change {
            kind,
            file: 'F',
            inode: 9,
            old: path(old),
            new: path(new),
            links: 0,
            ctime: (1_800_000_000, 42),
            lost_names: vec![],
            new_names: vec![],
        }
    }

    fn shown(change: &Change, form: Form) -> String {
        String::from_utf8(line(change, "/tank/test", form)).unwrap()
    }

    #[test]
    fn lines_are_those_of_zfs_diff() {
        let form = Form { classified: true, ..Form::default() };
        let linked = Change { links: 1, ..change(Kind::Modified, b"/linked", b"/linked") };
        assert_eq!(shown(&linked, form), "M\tF\t/tank/test/linked\t(+1)\n");
        let top = Change { file: '/', ..change(Kind::Modified, b"/", b"/") };
        assert_eq!(shown(&top, form), "M\t/\t/tank/test/\n");
        let renamed = change(Kind::Renamed, b"/old name", b"/new\\name");
        assert_eq!(shown(&renamed, form), "R\tF\t/tank/test/old\\0040name -> /tank/test/new\\0134name\n");
        let scripted = Form { scripted: true, timed: true, plain: true, classified: false };
        assert_eq!(
            shown(&renamed, scripted),
            "1800000000.000000042\tR\t/tank/test/old name\t/tank/test/new\\name\n"
        );
        let removed = change(Kind::Removed, "/é".as_bytes(), b"");
        assert_eq!(shown(&removed, Form::default()), "-\t/tank/test/\\0303\\0251\n");
        assert_eq!(shown(&change(Kind::Added, b"", b"/c"), Form::default()), "+\t/tank/test/c\n");
        assert_eq!(line(&change(Kind::Added, b"", b"/c"), "/", Form::default()), b"+\t/c\n");
        assert_eq!(line(&change(Kind::Added, b"", b"/c"), "", Form::default()), b"+\t/c\n");
    }

    #[test]
    fn objects_have_numbers_and_whole_names() {
        let object = json(&change(Kind::Renamed, b"/\xff", b"/b"), "/mnt");
        assert_eq!((&object["change"], &object["path"]), (&json!("renamed"), &json!("/mnt/b")));
        assert_eq!(object["old_path"], "/mnt/\u{fffd}");
        assert_eq!(object["old_path_bytes"], json!(b"/mnt/\xff"));
        assert!(object.get("path_bytes").is_none());
    }
}
