/// How much is measured. Short shows that everything works; only long makes figures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) long: bool,
    pub(crate) rounds: usize,
    /// Events of a drain.
    pub(crate) events: u64,
    pub(crate) keys: u32,
    /// Transactions of many writers, and of one alone, who waits for the disk each time.
    pub(crate) transactions: u64,
    pub(crate) transactions_alone: u64,
    /// Events that wait: few and many.
    pub(crate) backlog: (u64, u64),
    /// Events that were delivered long ago.
    pub(crate) history: u64,
    /// Events that peers drain: under a minute for one that does 10,000 a second.
    pub(crate) peer_events: u64,
    /// Seconds with nothing to do.
    pub(crate) idle_s: u64,
    /// Seconds that a transaction is held open.
    pub(crate) held_s: u64,
    /// Seconds at a rate.
    pub(crate) paced_s: u64,
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
                transactions_alone: 10_000,
                backlog: (10_000, 10_000_000),
                history: 20_000_000,
                peer_events: 300_000,
                idle_s: 60,
                held_s: 120,
                paced_s: 30,
                lease_ms: 10_000,
            },
            false => Size {
                long,
                rounds,
                events: 2_000,
                keys: 100,
                transactions: 128,
                transactions_alone: 128,
                backlog: (1_000, 5_000),
                history: 5_000,
                peer_events: 400,
                idle_s: 1,
                held_s: 2,
                paced_s: 1,
                lease_ms: 1_000,
            },
        }
    }

    /// Payloads that are tried.
    pub(crate) fn payloads(&self) -> &'static [usize] {
        if self.long { &[256, 1024] } else { &[256] }
    }
}
