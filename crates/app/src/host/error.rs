//! Errors of the layers below, in people's words: by what can be done, what is not lost, the way out.

use crate::api::{ApiError, ErrorKind};
use larder_app::fuse::MountError;
use larder_device::OpenError;
use larder_files::FsError;
use larder_pool::{PoolError, Refusal};

/// The ways on of a suspended pool.
const GO_ON: &str = "attach the devices again, then: larder pool clear POOL; if that is refused: \
                     larder pool export -f POOL; larder pool import POOL";
const COMMITTED: &str = "what was committed or synced before";
/// Text on what is not lost, for refusals.
pub const NOTHING_CHANGED: &str = "everything: nothing was changed";

/// The remedy for a refusal of the pool, if there is one.
pub fn way_out(refusal: &Refusal) -> Option<&'static str> {
    Some(match refusal {
        Refusal::TwoPools(_) => "import with -d naming only the devices that you trust",
        Refusal::WrittenApart { .. } => "import with -d naming only the devices whose data you want",
        Refusal::Copies { .. } => "move one of them away, or name the devices with -d",
        Refusal::RootDamaged { .. } | Refusal::LogAhead { .. } => {
            "look for a device that is missing; to read what there is: larder pool import -o readonly=on POOL"
        }
        Refusal::LogUnread { is_alone: true, .. } => {
            "attach the log's devices; without what may be there: larder pool import -m POOL; to read what was \
             committed: larder pool import -o readonly=on POOL"
        }
        Refusal::LogUnread { .. } => {
            "try again, or attach a device that is missing; without what may be there: larder pool import --accept-loss \
             POOL; to read what was committed: larder pool import -o readonly=on POOL"
        }
        Refusal::OnlyReading(_) => "use a newer build; to read it: larder pool import -o readonly=on POOL",
        Refusal::NewerDevice { .. } => {
            "use that build, or name with -d only the devices whose data you want; to read it: \
             larder pool import -o readonly=on POOL"
        }
        Refusal::Newer(_) => "import it with a newer version of Larder",
        Refusal::TooFewDevices { .. } | Refusal::MapOutOfReach(_) => "attach them and import again",
        Refusal::OutOfReach(_) => {
            "attach them and import again; to read the rest: larder pool import -o readonly=on POOL"
        }
        Refusal::OutOfIds(_) => "to read it: larder pool import -o readonly=on POOL",
        Refusal::Exported => "larder pool import POOL",
        Refusal::CannotComplete(_) => "larder pool export -f POOL; larder pool import POOL",
        Refusal::NoDeviceNumbers | Refusal::NoGroupNumbers | Refusal::NoDatasetNumbers(_) => {
            "copy what it holds to a new pool"
        }
        Refusal::Spare(_) => "larder pool remove POOL takes a spare out",
        Refusal::Branched { .. } => "larder pool replace POOL with the device as the old and as the new one",
        Refusal::FailedAgain { .. } | Refusal::CutShort { .. } | Refusal::LacksSlots { .. } => {
            "larder pool replace POOL puts another in its place"
        }
        Refusal::NotWhole(_) => "larder pool status POOL shows why; larder pool wait -t resilver POOL",
        Refusal::NoMirror(_) => "a copy: larder fs replicate; a log: larder pool remove POOL takes it out",
        Refusal::NotCopied => "larder pool wait -t resilver,remove POOL",
        Refusal::Halfway => "larder pool status POOL shows why; larder pool clear POOL",
        Refusal::NotThere(_) => "attach it; or larder pool replace POOL puts another in its place",
        Refusal::NoPlace(_) => "larder pool detach POOL, or of a spare larder pool remove POOL, lets it go",
        Refusal::GroupShrinks => {
            "larder pool wait -t remove POOL waits for that; larder pool remove -s POOL has it stay"
        }
        Refusal::GroupLeaves => "larder pool remove -s POOL has it stay",
        Refusal::TooManyOut { .. } => {
            "larder pool online or larder pool replace POOL, and larder pool wait -t resilver POOL"
        }
        Refusal::NoRoomFor { .. } => "add devices, or delete something: larder pool add, larder pool attach",
        Refusal::LastGroup(_) => "larder pool add POOL WORD DEVICE... adds another",
        Refusal::LastCopy(_) => "larder pool replace POOL puts another in its place",
        Refusal::TooManyDevices { .. }
        | Refusal::Needed(_)
        | Refusal::Hung(_)
        | Refusal::OtherDevice { .. }
        | Refusal::Leaving(_)
        | Refusal::BeingReplaced { .. }
        | Refusal::TooSmall { .. }
        | Refusal::NobodyWaits(_)
        | Refusal::CannotDetach { .. }
        | Refusal::HoldsData(_) => return None,
    })
}

/// A moment in the time zone of the daemon.
fn time(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(seconds).map(|time| time.to_zoned(jiff::tz::TimeZone::system()));
    time.map_or_else(|_| seconds.to_string(), |time| time.strftime("%F %T").to_string())
}

impl From<PoolError> for ApiError {
    fn from(error: PoolError) -> Self {
        let mut message = error.to_string();
        if let PoolError::Refused(Refusal::LogUnread { since, .. }) = &error {
            message += &format!(". That commit, which is of {}, has everything before", time(since.secs));
        }
        match error {
            PoolError::NoSpace => Self::new(ErrorKind::NoSpace, message)
                .safe("everything that is stored")
                .hint("delete files, then: larder pool wait -t free POOL"),
            PoolError::Quota(_) => Self::new(ErrorKind::NoSpace, message)
                .safe("everything that is stored")
                .hint("delete files, or raise the quota: larder fs get -r quota,refquota POOL"),
            PoolError::Unreadable { .. } | PoolError::Corrupt(_) => Self::new(ErrorKind::Corrupt, message)
                .safe("everything else: damage is kept to the block that it hit")
                .hint("larder pool status shows which device gives wrong data"),
            PoolError::Suspended(_) => Self::new(ErrorKind::Suspended, message).safe(COMMITTED).hint(GO_ON),
            PoolError::HostFull(_) => Self::new(ErrorKind::NoSpace, message)
                .safe("everything that is stored; it can be read")
                .hint("make room there, then: larder pool clear POOL"),
            PoolError::Device { device, error } => Self::new(ErrorKind::Device, format!("{device}: {error}"))
                .at(&device)
                .safe(COMMITTED)
                .hint("look for the device's errors with: dmesg"),
            PoolError::NotFound(_) => Self::new(ErrorKind::NotFound, message),
            PoolError::Exists(_) => Self::new(ErrorKind::Exists, message),
            PoolError::Refused(refusal) => {
                let kind = match refusal {
                    Refusal::FailedAgain { .. } => ErrorKind::Device,
                    _ => ErrorKind::Usage,
                };
                let error = Self::new(kind, message).safe(NOTHING_CHANGED);
                match way_out(&refusal) {
                    Some(hint) => error.hint(hint),
                    None => error,
                }
            }
            PoolError::Invalid(_) => Self::usage(message),
            PoolError::ReadOnly => Self::new(ErrorKind::ReadOnly, "the pool was imported for reading only")
                .hint("larder pool export POOL; larder pool import POOL"),
            PoolError::Busy(_) | PoolError::NotAtHand => Self::new(ErrorKind::Busy, message),
        }
    }
}

impl From<FsError> for ApiError {
    fn from(error: FsError) -> Self {
        match error {
            FsError::NoSpace => PoolError::NoSpace.into(),
            FsError::HostFull(text) => PoolError::HostFull(text).into(),
            FsError::Quota => Self::new(ErrorKind::NoSpace, "a quota is used up")
                .safe("everything that is stored")
                .hint("delete files, or raise the quota: larder fs get -r quota,refquota POOL"),
            FsError::ReadOnly => PoolError::ReadOnly.into(),
            FsError::Busy => Self::new(ErrorKind::Busy, "it is in use"),
            FsError::Damaged(text) | FsError::Io(text) => Self::new(ErrorKind::Corrupt, text)
                .safe(COMMITTED)
                .hint("larder pool status shows which device gives wrong data"),
            other => Self::new(ErrorKind::Internal, other.to_string()),
        }
    }
}

impl From<OpenError> for ApiError {
    fn from(error: OpenError) -> Self {
        let message = error.to_string();
        let (kind, path, hint) = match &error {
            OpenError::NotFound { path } => (ErrorKind::NotFound, path, None),
            OpenError::Busy { path } => (
                ErrorKind::Busy,
                path,
                Some(
                    "larder daemon status shows the pools of this daemon; another may run with another LARDER_RUN_DIR",
                ),
            ),
            OpenError::InUse { path } => (ErrorKind::Busy, path, Some("lsblk -f shows who has it")),
            OpenError::TooSmall { path, .. } => {
                return Self::usage(format!("{} is too small: a device has at least 64M", path.display()));
            }
            OpenError::NotADevice { path } => (ErrorKind::Usage, path, None),
            OpenError::Permission { path } => (ErrorKind::Denied, path, Some("run the daemon as root")),
            OpenError::Io { path, .. } => {
                (ErrorKind::Device, path, Some("look for the device's errors with: dmesg"))
            }
        };
        let error = Self::new(kind, message).at(&path.to_string_lossy());
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl From<MountError> for ApiError {
    fn from(error: MountError) -> Self {
        let message = error.to_string();
        let kind = match error {
            MountError::NoFuse => ErrorKind::Unsupported,
            MountError::NotAllowed(_) | MountError::OthersNotAllowed | MountError::StrangeLink(_) => {
                ErrorKind::Denied
            }
            MountError::NoMountpoint(_) => ErrorKind::NotFound,
            MountError::NotDirectory(_) => ErrorKind::Usage,
            MountError::AlreadyMounted(_) | MountError::NotEmpty(_) => ErrorKind::Exists,
            MountError::Dead(_) => ErrorKind::Busy,
            MountError::Io { .. } => ErrorKind::Internal,
        };
        Self::new(kind, message)
    }
}

impl ApiError {
    /// The same, after what was being done: `cannot create 'tank': …`.
    #[must_use]
    pub fn within(mut self, doing: impl std::fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }

    /// The same, with the serial number of the device at `path` where it has one.
    #[must_use]
    pub fn at(self, path: &str) -> Self {
        match super::devices::by_id(std::path::Path::new(path)) {
            Some(_) => self.device(named(path)),
            None => self,
        }
    }

    /// The same, with the pool's name where hints say POOL.
    #[must_use]
    pub fn of_pool(mut self, name: &str) -> Self {
        self.hint = self.hint.map(|hint| hint.replace("POOL", name));
        self
    }
}

/// A device with its model and serial number, where the system's links tell them.
pub fn named(path: &str) -> String {
    match super::devices::by_id(std::path::Path::new(path)) {
        Some(id) => format!("{path} ({id})"),
        None => path.to_owned(),
    }
}
