use super::config::RelayConfig;
use super::lane::Lane;
use crate::clock::Instant;
use crate::flow::Pace;
use crate::mutant;
use crate::outbox::{PageRequest, Position, Token};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most pages that are read at once: one for the lanes in front, one for the stragglers.
const READERS: usize = 2;

/// However large payloads are, so many rows are asked for.
const LEAST_ROWS: usize = 50;

/// So long do lanes with nothing to do wait for full ones at the most.
const PATIENCE: Duration = Duration::from_secs(2);

fn patience(config: &RelayConfig) -> Duration {
    config.poll.1.min(PATIENCE)
}

/// Reads pages for lanes that stand in step: one reader for those in front, one for the stragglers.
/// (One reader per lane would cost a scan per lane for the same rows.)
#[derive(Debug)]
pub(super) struct Readers {
    under_way: BTreeMap<usize, Reading>,
    pace: Pace,
    /// All there was has been read up to here.
    caught_up: Option<Position>,
    /// The doorbell rang since the last read began.
    rung: bool,
    /// Payload bytes of a row, on the last page that had any.
    row_bytes: usize,
    /// Since when lanes with nothing to do have been waiting for full ones.
    idle_since: Option<Instant>,
}

/// A page on its way.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) start: Position,
    pub(super) lanes: Vec<(u16, Token)>,
}

/// Lanes that stand in step.
#[derive(Debug, Default)]
struct Group {
    /// Those with room for more.
    lanes: Vec<(u16, Token)>,
    /// How many events these have in memory.
    queued: usize,
    /// Some of them have nothing to do.
    some_are_idle: bool,
    /// Others have no room.
    some_are_full: bool,
}

impl Group {
    /// A page for a part of the lanes is read again for the others. So those with room wait for those without, as long
    /// as they have a batch each on average to work on.
    fn should_read(&self, config: &RelayConfig) -> bool {
        let enough = config.batch.saturating_mul(self.lanes.len());
        !self.lanes.is_empty() && (!self.some_are_full || self.queued < enough)
    }

    /// Full lanes that are slow must not keep idle ones waiting for long.
    fn keeps_some_waiting(&self, config: &RelayConfig) -> bool {
        self.some_are_idle && !self.should_read(config)
    }
}

impl Readers {
    pub(super) fn new(config: &RelayConfig, doorbell: bool) -> Self {
        let longest = if doorbell { config.poll_with_doorbell } else { config.poll.1 };
        let pace = Pace::new(config.poll.0, longest);
        Self {
            under_way: BTreeMap::new(),
            pace,
            caught_up: None,
            rung: false,
            row_bytes: 0,
            idle_since: None,
        }
    }

    pub(super) fn ring(&mut self) {
        self.rung = true;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Which pages to read now.
    pub(super) fn begin(
        &mut self,
        lanes: &BTreeMap<u16, Lane>,
        now: Instant,
        config: &RelayConfig,
    ) -> Vec<(usize, PageRequest)> {
        let groups = self.groups(lanes.iter(), config);
        self.begin_with(groups, now, config)
    }

    /// The same where memory is full: only lanes with nothing to do are read for, and a batch's share of a page at a time.
    pub(super) fn begin_for_idle(
        &mut self,
        lanes: &BTreeMap<u16, Lane>,
        now: Instant,
        config: &RelayConfig,
    ) -> Vec<(usize, PageRequest)> {
        let share = config.page_bytes / config.batches_at_once();
        let groups = self.groups(lanes.iter().filter(|(_, lane)| lane.is_idle()), config);
        let mut begun = self.begin_with(groups, now, config);
        for (_, page) in &mut begun {
            page.max_bytes = share.max(1);
            page.max_rows = self.rows_that_fit(share, config);
        }
        begun
    }

    fn begin_with(
        &mut self,
        groups: BTreeMap<Position, Group>,
        now: Instant,
        config: &RelayConfig,
    ) -> Vec<(usize, PageRequest)> {
        if mutant!(ReaderPerLane) {
            return self.begin_one_by_one(groups, now, config);
        }
        let front = groups.last_key_value().map(|(position, _)| *position);
        let long_enough = self.have_waited_long_enough(&groups, now, config);
        let wanted = |group: &Group| {
            group.should_read(config) || (long_enough && group.keeps_some_waiting(config))
        };
        let mut begun = Vec::new();
        for reader in 0..READERS {
            let mine = |position: &Position| (Some(*position) == front) == (reader == 0);
            let last = groups.iter().rfind(|(position, group)| mine(position) && wanted(group));
            let Some((position, group)) = last else { continue };
            if !self.under_way.contains_key(&reader) && self.may_read(*position, now) {
                begun.push((reader, self.read(reader, *position, group.lanes.clone(), config)));
            }
        }
        begun
    }

    /// Have idle lanes been waiting for full ones as long as they should, at the most? (Sooner would read the same rows
    /// again and again where all lanes are at work, and some a little faster than others.)
    fn have_waited_long_enough(
        &mut self,
        groups: &BTreeMap<Position, Group>,
        now: Instant,
        config: &RelayConfig,
    ) -> bool {
        let wait = |(position, group): (&Position, &Group)| {
            group.keeps_some_waiting(config) && self.may_read(*position, now)
        };
        self.idle_since = groups.iter().any(wait).then(|| self.idle_since.unwrap_or(now));
        self.idle_since.is_some_and(|since| now >= since + patience(config))
    }

    /// What a wrong reader does: a page for each lane, though the same rows hold those of many.
    fn begin_one_by_one(
        &mut self,
        mut groups: BTreeMap<Position, Group>,
        now: Instant,
        config: &RelayConfig,
    ) -> Vec<(usize, PageRequest)> {
        groups.retain(|position, _| self.may_read(*position, now));
        let mut begun = Vec::new();
        for (position, group) in groups {
            for lane in group.lanes {
                let reader = usize::from(lane.0);
                begun.push((reader, self.read(reader, position, vec![lane], config)));
            }
        }
        begun
    }

    fn groups<'l>(
        &self,
        lanes: impl Iterator<Item = (&'l u16, &'l Lane)>,
        config: &RelayConfig,
    ) -> BTreeMap<Position, Group> {
        let mut groups: BTreeMap<Position, Group> = BTreeMap::new();
        for (number, lane) in lanes.filter(|(number, _)| !self.is_read(**number)) {
            let Some(position) = lane.reads_from() else { continue };
            let group = groups.entry(position).or_default();
            if lane.has_room(config) {
                group.lanes.push((*number, lane.token));
                group.queued += lane.queued();
                group.some_are_idle |= lane.is_idle();
            } else {
                group.some_are_full = true;
            }
        }
        groups
    }

    /// Is a page of this lane on its way?
    pub(super) fn is_read(&self, lane: u16) -> bool {
        let among = |reading: &Reading| reading.lanes.iter().any(|(number, _)| *number == lane);
        self.under_way.values().any(among)
    }

    fn may_read(&self, position: Position, now: Instant) -> bool {
        self.rung || self.caught_up != Some(position) || self.pace.is_over(now)
    }

    fn read(
        &mut self,
        reader: usize,
        position: Position,
        lanes: Vec<(u16, Token)>,
        config: &RelayConfig,
    ) -> PageRequest {
        // Only a read begun after the ring may silence it.
        self.rung = false;
        let numbers = lanes.iter().map(|(lane, _)| *lane).collect();
        self.under_way.insert(reader, Reading { start: position, lanes });
        PageRequest {
            position,
            lanes: numbers,
            max_rows: self.rows_that_fit(config.page_bytes, config),
            max_bytes: config.page_bytes,
        }
    }

    /// A store finds all rows of a page before it cuts it where its bytes are too many: it is not asked for more than will
    /// be left.
    fn rows_that_fit(&self, bytes: usize, config: &RelayConfig) -> usize {
        let fitting = bytes.checked_div(self.row_bytes).unwrap_or(usize::MAX);
        fitting.clamp(LEAST_ROWS.min(config.page_rows), config.page_rows)
    }

    /// A page came (or not): what had been asked.
    pub(super) fn end(&mut self, reader: usize) -> Option<Reading> {
        self.under_way.remove(&reader)
    }

    /// Nothing lies beyond `position`.
    pub(super) fn quiet(&mut self, position: Position, now: Instant) {
        self.caught_up = Some(position);
        self.pace.quiet(now);
    }

    /// So many rows came, with payloads of so many bytes.
    pub(super) fn busy(&mut self, rows: usize, bytes: usize) {
        self.row_bytes = bytes.checked_div(rows).unwrap_or(self.row_bytes);
        self.caught_up = None;
        self.pace.busy();
    }

    /// When to look again: at a quiet log, and for lanes that wait for others.
    pub(super) fn wake_at(&self, config: &RelayConfig) -> impl Iterator<Item = Instant> {
        let quiet = self.caught_up.map(|_| self.pace.until());
        let idle = self.idle_since.map(|since| since + patience(config));
        quiet.into_iter().chain(idle)
    }
}
