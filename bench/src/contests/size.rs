/// How much is measured. Short shows that everything works; only long makes figures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) long: bool,
    pub(crate) rounds: usize,
    /// Events of a drain.
    pub(crate) events: u64,
    pub(crate) keys: u32,
    /// Transactions of a writer.
    pub(crate) transactions: u64,
    /// Events that wait: few and many.
    pub(crate) backlog: (u64, u64),
    /// Events that were delivered long ago.
    pub(crate) history: u64,
    /// Seconds at a rate, or with nothing to do.
    pub(crate) seconds: u64,
    pub(crate) lease_ms: u64,
}

impl Size {
    pub(crate) fn of(long: bool, rounds: Option<usize>) -> Size {
        let rounds = rounds.unwrap_or(if long { 5 } else { 1 });
        match long {
            true => Size {
                long,
                rounds,
                events: 500_000,
                keys: 10_000,
                transactions: 60_000,
                backlog: (10_000, 10_000_000),
                history: 20_000_000,
                seconds: 60,
                lease_ms: 10_000,
            },
            false => Size {
                long,
                rounds,
                events: 2_000,
                keys: 100,
                transactions: 128,
                backlog: (1_000, 5_000),
                history: 5_000,
                seconds: 1,
                lease_ms: 1_000,
            },
        }
    }

    /// Payloads that are tried.
    pub(crate) fn payloads(&self) -> &'static [usize] {
        if self.long { &[256, 1024] } else { &[256] }
    }
}
