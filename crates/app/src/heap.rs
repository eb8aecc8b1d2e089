//! The heap of the daemon, and of benchmarks that stand in for it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

const ARENAS: &str = "MALLOC_ARENA_MAX";
const TUNABLES: &str = "GLIBC_TUNABLES";
const HUGE: &str = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:\
                    glibc.malloc.trim_threshold=67108864";

/// Starts this process over with one malloc arena, unless somebody chose how many. With glibc's default of
/// eight a core, buffers freed by one thread are kept from the others: three files of 512 MiB written
/// through a mount left 1,097 MB resident under a budget of 512 MiB; with one arena 365 MB, as fast.
/// That heap is asked for in huge pages, and records are taken from it instead of being mapped and unmapped
/// one by one, which saves page faults: 1 GiB written and read cold through a mount took 0.70 instead of 0.77
/// and 0.42 instead of 0.51 processor seconds (medians of seven runs in turns). It costs memory: a peak of 523
/// instead of 482 MiB in the median, 555 instead of 497 at most, while the cache had 55 % of the budget; it has 45 now.
/// It must be known before the first allocation, hence the new start.
///
/// # Errors
/// When it could not be started over: it can go on as it is.
pub fn share_one() -> io::Result<()> {
    if std::env::var_os(ARENAS).is_some() {
        return Ok(());
    }
    let mut args = std::env::args_os();
    let mut again = Command::new(std::env::current_exe()?);
    again.arg0(args.next().unwrap_or_default()).args(args).env(ARENAS, "1");
    if std::env::var_os(TUNABLES).is_none() {
        again.env(TUNABLES, HUGE);
    }
    Err(again.exec())
}
