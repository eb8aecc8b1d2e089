//! Processor time and memory of a process, from proc_pid_stat(5) and proc_pid_status(5).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::Duration;

/// Processor time of a process so far, all threads, user and kernel: in steps of a tick (10 ms).
///
/// # Errors
/// When there is no such process.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(ticks(fields(&stat)[11..13].iter().sum()))
}

/// Processor time of the children of this process that have ended and were waited for, in ticks.
pub fn children_cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").expect("our own process");
    ticks(fields(&stat)[13..15].iter().sum())
}

/// Processor time of each kernel thread so far, in ticks.
pub fn kernel_threads() -> HashMap<u32, Duration> {
    // PF_KTHREAD of the kernel's sched.h.
    const KERNEL_THREAD: u64 = 0x20_0000;
    let processes = fs::read_dir("/proc").expect("Linux has it").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let thread = |pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = fields(&stat);
        (fields[6] & KERNEL_THREAD != 0).then(|| (pid, ticks(fields[11..13].iter().sum())))
    };
    pids.filter_map(thread).collect()
}

/// Processor time of the whole machine so far: user, system, interrupts, and what a hypervisor gave to other machines
/// while there was something to do here; not idle time.
pub fn machine_cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/stat").expect("Linux has it");
    let line = stat.lines().next().unwrap_or("");
    let columns: Vec<u64> = line.split_whitespace().skip(1).map(|n| n.parse().unwrap_or(0)).collect();
    // user, nice, system, then idle and iowait, then irq, softirq and steal.
    ticks(columns[..3].iter().chain(&columns[5..8]).sum())
}

/// The fields of a stat file after the name, which is in parentheses and may hold anything: field 3 of
/// proc_pid_stat(5) is the first here. What is no number is 0.
fn fields(stat: &str) -> Vec<u64> {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect()
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Processor time of this process so far, exactly.
pub fn own_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident memory of this process, bytes.
pub fn resident_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("our own process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The most memory that a process ever had resident, bytes.
///
/// # Errors
/// When there is no such process.
pub fn peak_memory(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.unwrap_or(0) * 1024)
}
