//! Errors with a stable code and a page: `relevo explain R0007`.

use std::fmt;

/// A result of Relevo.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The answer to "try again?".
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ErrorClass {
    /// It may work later, unchanged.
    Transient,
    /// It will fail again until somebody changes something.
    Permanent,
    /// The event itself cannot be worked on by anyone: undecodable, oversize.
    Poison,
    /// Nobody knows whether it happened.
    Unknown,
}

impl ErrorClass {
    /// All classes.
    pub const ALL: [Self; 4] = [Self::Transient, Self::Permanent, Self::Poison, Self::Unknown];

    /// The word used in tables, metrics and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Poison => "poison",
            Self::Unknown => "unknown",
        }
    }

    /// Reads the word that [`Self::as_str`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == text)
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! kinds {
    ($($kind:ident = $code:literal, $class:ident, $title:literal;)*) => {
        /// What went wrong. Each kind has a code that never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kind { $(#[doc = $title] $kind,)* }

        impl Kind {
            /// Every kind there is.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];
            /// The stable code, `R` and four digits.
            pub fn code(self) -> &'static str { match self { $(Self::$kind => $code,)* } }
            /// What it is, in a few words.
            pub fn title(self) -> &'static str { match self { $(Self::$kind => $title,)* } }
            /// Try again?
            pub fn class(self) -> ErrorClass { match self { $(Self::$kind => ErrorClass::$class,)* } }
        }
    };
}

kinds! {
    InvalidUrl = "R0001", Permanent, "the store's URL cannot be understood";
    Unreachable = "R0002", Transient, "the server cannot be reached";
    AuthenticationFailed = "R0003", Permanent, "the server refused the user or the password";
    ReadOnlyReplica = "R0004", Permanent, "this is a replica, not the primary";
    TransactionPooler = "R0005", Permanent, "a transaction pooler stands between";
    MissingPrivilege = "R0006", Permanent, "the user lacks a privilege";
    SchemaMissing = "R0007", Permanent, "Relevo's tables are not there yet";
    SchemaOlder = "R0008", Permanent, "Relevo's tables are of an older version";
    SchemaNewer = "R0009", Permanent, "Relevo's tables are of a newer version";
    PayloadTooLarge = "R0010", Poison, "the payload is over the limit";
    InvalidPayload = "R0011", Poison, "the payload cannot be read as it should";
    InvalidTopic = "R0012", Poison, "the topic or topic filter is not valid";
    InvalidKey = "R0013", Poison, "the key is not valid";
    InvalidHeaders = "R0014", Poison, "a header is not valid";
    UnknownSubscription = "R0015", Permanent, "there is no subscription of that name";
    SequenceCache = "R0016", Permanent, "the log's sequence caches numbers";
    SequenceReset = "R0017", Permanent, "the log's sequence went backwards";
    AnotherCluster = "R0018", Permanent, "the tables were moved to another cluster and cannot be rebased by themselves";
    FileLocked = "R0019", Transient, "the database file is locked by another process";
    FileMoved = "R0020", Permanent, "the database file was moved, replaced or cannot be opened";
    FileReadOnly = "R0021", Permanent, "the database file is read-only";
    DiskFull = "R0022", Transient, "the disk is full";
    Stale = "R0023", Transient, "the lane belongs to another owner now";
    CommitUnknown = "R0024", Unknown, "nobody knows whether the commit happened";
    TooManyParkedKeys = "R0025", Permanent, "too many parked keys: the lane stopped";
    HandlerTimeout = "R0026", Transient, "the handler did not end within its limit";
    HandlerPanicked = "R0027", Transient, "the handler panicked";
    InvalidConfig = "R0028", Permanent, "the configuration is not valid";
    EventNotFound = "R0029", Permanent, "there is no such event, dead letter, replay or error code";
    ReplayRefused = "R0030", Permanent, "this dead letter cannot be replayed";
    Timeout = "R0031", Transient, "the store did not answer in time";
    StoreFailed = "R0032", Transient, "the store reported an error";
    NotSupported = "R0033", Permanent, "this store cannot do that";
    TickMissing = "R0034", Permanent, "a tick that a cursor needs is gone";
    TransactionConflict = "R0035", Transient, "the database ended the transaction (deadlock, serialization, timeout)";
    DestinationDown = "R0036", Transient, "the destination cannot be reached";
    DestinationRefused = "R0037", Permanent, "the destination refused the event";
    HandlerFailed = "R0038", Transient, "the handler reported a failure";
    UnsupportedServer = "R0039", Permanent, "the server's version is not supported";
    InvalidArgument = "R0040", Permanent, "a value that was given is not valid";
    LosesMessages = "R0041", Permanent, "this would lose messages at the broker";
    ProofGone = "R0042", Permanent, "the inbox no longer knows what was done";
    UnfitTable = "R0043", Permanent, "the adopted table does not fit its mapping";
}

/// An error: its kind, the adapter it came from, what happened, and what lies behind it.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    adapter: Option<&'static str>,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error that says what happened and, where it helps, what to do.
    ///
    /// Whatever the message repeats of somebody's input, it obeys no terminal and stays bounded; [`quoted`] keeps
    /// a long text from hiding the rest of the message.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, adapter: None, message: harmless(message.into()), source: None }
    }

    /// Names the adapter it came from.
    pub fn from_adapter(mut self, adapter: &'static str) -> Self {
        self.adapter = Some(adapter);
        self
    }

    /// Keeps what lies behind it.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Try again?
    pub fn class(&self) -> ErrorClass {
        self.kind.class()
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// What happened, without the code.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The adapter it came from.
    pub fn adapter(&self) -> Option<&'static str> {
        self.adapter
    }
}

/// No message is longer.
const MOST_CHARACTERS: usize = 60_000;

/// Somebody's text for use in a message: in quotes, with control characters written out, and only its beginning
/// where it is long.
pub fn quoted(text: &str) -> String {
    const SHOWN: usize = 100;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// The text with control characters other than line breaks written out, and an end.
pub fn harmless(text: String) -> String {
    let obeyed = |c: char| c.is_control() && c != '\n';
    if text.len() <= MOST_CHARACTERS && !text.contains(obeyed) {
        return text;
    }
    let mut safe = String::with_capacity(text.len().min(MOST_CHARACTERS));
    for c in text.chars().take(MOST_CHARACTERS) {
        if obeyed(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code())?;
        if let Some(adapter) = self.adapter {
            write!(f, " ({adapter})")?;
        }
        write!(f, " {}: {}", self.kind.title(), self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_in_order() {
        for (index, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(kind.code(), format!("R{:04}", index + 1), "{kind:?}");
        }
    }

    #[test]
    fn a_message_obeys_no_terminal_and_has_an_end() {
        let long = format!("\u{1b}[31m{}", "x".repeat(100_000));
        let error = Error::new(Kind::InvalidTopic, long.as_str());
        assert!(error.message().starts_with("\\u{1b}[31mx") && error.message().len() < 61_000);
        assert!(quoted(&long).starts_with("\"\\u{1b}[31mx") && quoted(&long).len() < 120);
        assert_eq!(quoted("a\"b"), r#""a\"b""#);
    }

    #[test]
    fn a_class_survives_its_word() {
        for class in ErrorClass::ALL {
            assert_eq!(ErrorClass::parse(class.as_str()), Some(class));
        }
    }

    #[test]
    fn a_short_message_obeys_no_terminal_either_and_one_without_controls_has_an_end() {
        assert_eq!(harmless("a\u{1b}[31mb\nc".into()), "a\\u{1b}[31mb\nc");
        let most = "x".repeat(MOST_CHARACTERS);
        assert_eq!(harmless(format!("{most}x")), most);
        assert_eq!(harmless(most.clone()), most);
    }

    #[test]
    fn an_error_names_its_adapter_where_it_came_from_one() {
        let error = Error::new(Kind::DiskFull, "no room");
        assert_eq!(
            (error.adapter(), error.to_string().as_str()),
            (None, "R0022 the disk is full: no room")
        );
        let error = error.from_adapter("sqlite");
        assert_eq!(error.adapter(), Some("sqlite"));
        assert_eq!(error.to_string(), "R0022 (sqlite) the disk is full: no room");
    }
}
