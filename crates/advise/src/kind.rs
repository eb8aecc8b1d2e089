//! Kinds of files, by the endings of their names: for words alone, no figure depends on them.

use std::path::Path;

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Films, pictures, music.
    Media,
    /// Images of disks.
    Images,
    /// Compressed archives and packages.
    Archives,
    /// Archives that are not compressed.
    Backups,
    /// Texts, tables, letters.
    Documents,
    /// Programs' sources.
    Sources,
    /// Databases.
    Databases,
    /// All else.
    Other,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = 8;
    const ALL: [Self; Self::COUNT] = [
        Self::Media,
        Self::Images,
        Self::Archives,
        Self::Backups,
        Self::Documents,
        Self::Sources,
        Self::Databases,
        Self::Other,
    ];

    /// The kind of a file.
    pub fn of(path: &Path) -> Self {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        match &*ending {
            "mkv" | "mp4" | "avi" | "mov" | "webm" | "m4v" | "ts" | "mpg" | "mpeg" | "jpg" | "jpeg"
            | "png" | "heic" | "webp" | "gif" | "mp3" | "flac" | "ogg" | "opus" | "m4a" | "aac" | "cr2"
            | "nef" | "arw" | "dng" => Self::Media,
            "qcow2" | "img" | "vmdk" | "vdi" | "vhd" | "vhdx" | "raw" | "iso" => Self::Images,
            "zip" | "gz" | "xz" | "zst" | "bz2" | "7z" | "rar" | "tgz" | "deb" | "rpm" | "jar" | "apk"
            | "lz4" => Self::Archives,
            "tar" | "dump" | "bak" | "bkp" => Self::Backups,
            "txt" | "md" | "doc" | "docx" | "odt" | "ods" | "xls" | "xlsx" | "pdf" | "html" | "htm"
            | "csv" | "json" | "xml" | "tex" | "eml" | "mbox" | "log" | "rtf" | "epub" => Self::Documents,
            "rs" | "c" | "h" | "cc" | "cpp" | "hpp" | "py" | "js" | "tsx" | "go" | "java" | "rb" | "sh"
            | "pl" | "php" | "cs" | "swift" | "kt" | "scala" | "sql" | "css" => Self::Sources,
            "db" | "sqlite" | "sqlite3" | "mdb" | "ibd" | "myd" => Self::Databases,
            _ => Self::Other,
        }
    }

    /// The kind that most of the bytes are of, if most are of one.
    pub fn of_most(bytes: &[u64; Self::COUNT]) -> Self {
        let sum: u64 = bytes.iter().sum();
        let most = (0..Self::COUNT).find(|&at| bytes[at] > sum / 2);
        most.map_or(Self::Other, |at| Self::ALL[at])
    }

    /// Its name for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Media => "films, pictures, music",
            Self::Images => "disk images",
            Self::Archives => "compressed archives",
            Self::Backups => "archives",
            Self::Documents => "documents",
            Self::Sources => "sources",
            Self::Databases => "databases",
            Self::Other => "mixed files",
        }
    }
}
