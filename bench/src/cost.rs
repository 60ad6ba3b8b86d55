//! What processes cost: CPU time and memory, from /proc.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;

/// Linux counts CPU time in hundredths of a second, on every machine of today.
const TICKS_PER_S: f64 = 100.0;

/// CPU seconds of a process with everything it started, those that ended included.
pub(crate) fn cpu_of_tree(root: u32) -> f64 {
    let processes = all();
    let mut ticks = 0;
    let mut wanted = vec![root];
    while let Some(pid) = wanted.pop() {
        let Some(process) = processes.get(&pid) else { continue };
        ticks += process.ticks;
        wanted.extend(processes.iter().filter(|(_, other)| other.parent == pid).map(|(id, _)| *id));
    }
    ticks as f64 / TICKS_PER_S
}

/// CPU seconds of this process.
pub(crate) fn own_cpu() -> f64 {
    read(std::process::id()).map_or(0.0, |process| process.own as f64 / TICKS_PER_S)
}

/// The most memory this process ever held, in MB.
pub(crate) fn own_peak_mb() -> Result<f64> {
    rss_mb("self", "VmHWM")
}

/// Memory of a process, in MB: `VmHWM` is the most it ever held, `VmRSS` what it holds.
pub(crate) fn rss_mb(process: &str, which: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    let line = line.with_context(|| format!("no {which}"))?.trim_start_matches(':');
    let kb: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kb / 1024.0)
}

struct Process {
    parent: u32,
    own: u64,
    /// With those of its children that ended.
    ticks: u64,
}

fn all() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, read(pid)?))).collect()
}

fn read(pid: u32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may contain anything, also spaces and brackets.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let own = number(11)? + number(12)?;
    Some(Process { parent: number(1)? as u32, own, ticks: own + number(13)? + number(14)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_costs_something() {
        let mut sum = 0u64;
        let before = cpu_of_tree(std::process::id());
        while cpu_of_tree(std::process::id()) < before + 0.05 {
            sum = (0..1_000_000u64).fold(sum, |a, b| a.wrapping_mul(31).wrapping_add(b));
        }
        assert!(sum != 1 && own_cpu() > 0.0 && own_peak_mb().unwrap() > 1.0);
    }
}
