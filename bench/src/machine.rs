//! What figures were measured on, from /proc.

use serde::{Deserialize, Serialize};
use std::fs;

/// A machine, as far as figures depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_mb: u64,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn here() -> Machine {
        let cpu = field("/proc/cpuinfo", "model name");
        let memory = field("/proc/meminfo", "MemTotal");
        let kb = memory.and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Machine {
            cpu: cpu.unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mb: kb.unwrap_or(0) / 1024,
            kernel: kernel.map_or_else(unknown, |text| text.trim().to_owned()),
        }
    }

    /// The same processors: memory and kernel are told, but may change under figures that are compared.
    pub(crate) fn is_as_fast_as(&self, other: &Machine) -> bool {
        (&self.cpu, self.cores) == (&other.cpu, other.cores)
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// What the first line of this name says behind its colon.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cores_memory_and_a_kernel() {
        let here = Machine::here();
        assert!(here.cores > 0 && here.memory_mb > 0 && here.kernel != "unknown", "{here:?}");
        let more = Machine { memory_mb: here.memory_mb + 1, ..here.clone() };
        assert!(here.is_as_fast_as(&more));
        assert!(!here.is_as_fast_as(&Machine { cores: here.cores + 1, ..here.clone() }));
    }
}
