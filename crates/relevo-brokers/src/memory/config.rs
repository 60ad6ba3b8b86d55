/// How a queue of the in-process broker behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueConfig {
    /// Most messages it stores, the unsettled ones among them; then it refuses.
    pub capacity: usize,
    /// Largest payload; a larger one is poison.
    pub max_bytes: usize,
    /// One consumer at a time gets its messages; the others stand by.
    pub exclusive: bool,
    /// The queue for what its consumers give up.
    pub dead_letters: Option<String>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { capacity: 100_000, max_bytes: 16 << 20, exclusive: false, dead_letters: None }
    }
}

impl QueueConfig {
    /// Stores at most so many messages.
    pub fn capacity(mut self, messages: usize) -> Self {
        self.capacity = messages.max(1);
        self
    }

    /// Refuses payloads of more bytes as poison.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// One consumer at a time.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// What its consumers give up goes to this queue.
    pub fn dead_letters(mut self, queue: impl Into<String>) -> Self {
        self.dead_letters = Some(queue.into());
        self
    }
}

/// How the broker fails, for tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Not at all.
    #[default]
    None,
    /// It cannot be reached.
    Down,
    /// It stores, and its answer is lost.
    LosesConfirms,
    /// It takes nothing and says nothing.
    Hangs,
}
