//! Deliberately wrong variants of the engine, one at a time, chosen at run time. Only the simulator has them: they
//! show that its checks have teeth.

use std::cell::Cell;

/// Stands in every program in which a mutant could be in force: tests look for it in those that are shipped.
pub static MARKER: &str = "this program was built with mutants";

macro_rules! mutants {
    ($($name:ident = $what:literal;)*) => {
        /// A deliberately wrong variant.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Mutant { $(#[doc = $what] $name,)* }

        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Its name.
            pub fn name(self) -> &'static str { match self { $(Self::$name => stringify!($name),)* } }
            /// What it does wrong.
            pub fn what(self) -> &'static str { match self { $(Self::$name => $what,)* } }
        }
    };
}

mutants! {
    NaiveSequence = "the position is a sequence number: `seq > last`";
    NoBurntXid = "a tick's snapshot is taken without burning a transaction id before";
    TickInOneTransaction = "the statements of a tick share a transaction, so that its burnt id is still open";
    LowAfterSnapshot = "a tick reads `low` after its snapshot";
    LowStartsAtOne = "a sequence that was never called reports 1";
    SeqBeforeXid = "publishing draws the sequence number before the transaction id";
    OrderByXid = "rows of a window come in the order of (xid, seq)";
    NoTickSwap = "two tick makers may both use a number";
    NoNonce = "a tick is known by its number alone, which a crash may give out again";
    RemembersLostTicks = "a process remembers a tick that the server lost in a crash";
    TickAcrossRestart = "a tick begun before the server restarted is finished over a new connection";
    LostTickIsNewest = "a position that cannot be found reads on from the newest tick";
    KeepsLostTick = "a lane that stands at a lost tick is not read again";
    PrunesNeededTicks = "a tick that a cursor stands at is pruned";
    NoLateRows = "a window leaves out rows below `low` of its start";
    NoFloor = "late rows are looked for from the log's beginning on";
    ReaderPerLane = "each lane is read by itself, though others stand in step with it";
    CarriesSeqOver = "the last seq of a window is carried over into the next";
    CutIsForgotten = "a page that is cut where other lanes stand counts as read to its end";
    DropsRestOfWindow = "what a full page leaves of its window is forgotten";
    RebaseComparesXids = "transaction ids of another cluster are compared with those of this one";
    RewindComparesXids = "a rewind forgets what waits, by transaction ids of another cluster";
    WindowEndsElsewhere = "an open window's end is picked anew by every read";
    OnlyLastValueRings = "only a moved sequence makes a tick due";
    RetentionByCursor = "rows go because the cursor is past them, late ones too";
    NumbersComeAgain = "a log that retention has emptied numbers its rows from the beginning again";
    RefsLoseTheirBytes = "retention drops rows that parked refs point to";
    LaneByEvent = "an event's lane is drawn by its own id, though it has a key";
    LaneRecomputed = "rows that come to another cluster have their lanes drawn anew, by another function";
    SeveralInFlightPerKey = "several events of one key are unconfirmed at once";
    SkipFailedRow = "what follows a failed event of its key goes on";
    ParkedKeyStopsLane = "a parked key holds back the other keys of its lane";
    FullMemoryStopsAll = "what waits in memory behind one slow lane keeps all others from being read for";
    OneHangsAll = "while one lane's batch is under way no other lane hands anything over";
    ReleaseBeforeRecorded = "a follower goes before the dead letter before it is recorded";
    ForgetParked = "events behind a parked key are not written down";
    IgnoreParked = "fresh events of a parked key are handed over";
    FillsStoppedLane = "a lane that stopped takes in what had been asked for it before, and other lanes starve";
    UnparkTooEarly = "a parked key is let go while events still wait behind it";
    NoFence = "a lane transaction is not fenced";
    FenceIgnored = "the fence matched no row and the commit followed";
    FenceFirst = "the fence is a transaction's first statement, before its handlers";
    DrainOutsideFence = "parked keys are drained outside the lane's fence";
    TakeWithoutSwap = "a lane is taken without comparing its token";
    TokensCount = "tokens are counted up, and a take-over is not flushed";
    NeverTakesOver = "lanes of a dead owner stay its own";
    IgnoreLease = "a lane is taken while its owner is alive";
    IgnoreLeftovers = "a lease left over from a lost answer is neither taken nor given back";
    SilentWhileBusy = "an owner that waits for a handler or broker signs no life";
    ZombieGoesOn = "an owner whose lease may have ended goes on handing over";
    ZombieSendsOn = "a batch whose owner's lease may have ended sends its next wave";
    TrustMemoryAfterError = "memory is trusted after a write of unknown outcome";
    DrainNotDurable = "what became of a parked key is committed in haste, and a crash takes it back unnoticed";
    CommitUnknownIsDone = "a commit of unknown outcome counts as done";
    MarkBeforeConfirm = "the cursor moves before the destination confirmed";
    RecordsWhatWasRead = "the cursor moves past what was read and not handed over yet";
    RefusalIsDone = "a message that the broker refused counts as stored";
    UnknownIsDone = "a publish of unknown outcome counts as stored";
    UnknownNotNoted = "a publish of unknown outcome is noted as one that was refused";
    RetryNotCounted = "a failed attempt that will be tried again is noted and raises no counter";
    ProbeForgotten = "a breaker waits for a probe that was never made";
    RecordBeforeEffect = "the cursor is recorded before the effect commits";
    EffectOutsideRecord = "the effect commits before, and apart from, the record";
    NoUndo = "a failed event's writes stay in the shared transaction";
    KeepsSpoilt = "a shared transaction without savepoints goes on after a failed event, whose writes stay";
    DeadLetterDropped = "an event that failed for good leaves no dead letter";
    DeathNotCounted = "a dead letter is written and raises no counter";
    DeadStaysParked = "a dead letter is written and its event goes on waiting";
    SkipNotNoted = "a skip leaves no trace";
    SkipNotCounted = "a skip is noted and raises no counter";
    SkipOfAnother = "a skip is noted under another event of its batch";
    ReplayTwice = "a request is carried out again each time it is seen";
    ReplayStripsHeaders = "a replayed dead letter has lost its headers";
    AcknowledgeFirst = "a consumer acknowledges before its effect commits";
    AcknowledgesTheRest = "an acknowledgement settles what was received and not worked on yet, too";
    DedupOutsideEffect = "a consumer marks a message as seen in a transaction of its own";
    InboxRemembersHighest = "the inbox knows a message by the highest number it has seen";
    InboxByDay = "the inbox has seen a message only if it was on the same day";
    InboxWithoutConsumer = "the inbox knows a message by its id alone, whichever consumer it came to";
    InboxNotLocked = "two consumers note a message at the same time, and to both it is new";
    LooksBeforeItNotes = "the inbox looks which keys wait before it has noted the messages, which may take time";
    LandingDropped = "what fails is acknowledged, and lands nowhere";
    LandsApart = "what fails lands after, and apart from, its note in the inbox";
    LandsAlone = "what follows a failed message of its key in the batch is handed over";
    IgnoreLanded = "what comes while its key waits in the consumer's log is handed over";
    LandedForEverybody = "what landed is for every subscription that wants its topic";
    LandedUnderNewId = "a handler is given what landed under an id of its own";
    ShortInbox = "inbox rows are forgotten while copies may still come";
    UnboundedQueue = "a lane reads on whatever it holds in memory";
    UnboundedBytes = "pages are read however many bytes wait in memory";
    HeavyBatch = "a batch is bounded by its events alone, whatever bytes they have";
    UnboundedIntake = "a consumer receives on whatever waits in its memory";
    NeverResumes = "a source that was paused because its queue was full stays so";
}

thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Is this the variant in force on this thread?
pub fn active(mutant: Mutant) -> bool {
    std::hint::black_box(MARKER);
    ACTIVE.get() == Some(mutant)
}

/// Puts a variant (or none) in force on this thread.
pub fn activate(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}
