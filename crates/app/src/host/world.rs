//! The world that pools are given: clocks, randomness, hands, and who this host is.

use larder_device::{SystemClock, SystemEntropy, SystemWorkers};
use larder_format::HostId;
use larder_pool::World;
use std::sync::Arc;

/// Real clocks, real randomness, as many hands as there are cores.
///
/// # Errors
/// When threads cannot be made.
pub fn system() -> std::io::Result<World> {
    let host_name = host_name();
    Ok(World {
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(SystemEntropy),
        workers: Arc::new(SystemWorkers::new()?),
        host: host_id(&host_name),
        host_name,
    })
}

/// The machine's id, hashed as machine-id(5) asks for; the name's hash where there is none.
fn host_id(host_name: &str) -> HostId {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let source = if machine.trim().is_empty() { host_name } else { machine.trim() };
    let hash = blake3::keyed_hash(blake3::hash(b"larder host id").as_bytes(), source.as_bytes());
    let head = hash.as_bytes()[..8].try_into().expect("eight of 32 bytes");
    HostId::new(u64::from_le_bytes(head))
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_its_id() {
        assert_eq!(host_id("a"), host_id("a"));
    }
}
