use super::names::{TableName, check_name};
use crate::error::{Error, Kind, Result, quoted};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

macro_rules! roles {
    ($($role:ident = $word:literal, $meaning:literal;)*) => {
        /// What a column is to Relevo.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Role { $(#[doc = $meaning] #[serde(rename = $word)] $role,)* }

        impl Role {
            /// Every role there is.
            pub const ALL: &'static [Self] = &[$(Self::$role,)*];
            /// The word used in the configuration.
            pub fn as_str(self) -> &'static str { match self { $(Self::$role => $word,)* } }
            /// What it means, in a few words.
            pub fn meaning(self) -> &'static str { match self { $(Self::$role => $meaning,)* } }
        }
    };
}

roles! {
    Id = "id", "the row's own identity; a UUID is the event's id as it is";
    Topic = "topic", "routing key or subject";
    Key = "key", "what is kept in order";
    Type = "type", "event type, where it is not the topic";
    Payload = "payload", "the bytes that travel";
    Headers = "headers", "a JSON object of headers";
    CorrelationId = "correlation_id", "what the conversation is known by";
    Tenant = "tenant", "the tenant it belongs to";
    CreatedAt = "created_at", "when it happened";
    Sequence = "sequence", "a number drawn from a sequence when the row is inserted: the order";
    PublishedAt = "published_at", "set to the time of the confirm; a row without it is pending";
    Attempts = "attempts", "how many attempts failed";
    NextAttemptAt = "next_attempt_at", "not before this time; set after a failure";
    Error = "error", "text of the last error";
    ErrorClass = "error_class", "its class: transient, permanent, poison, unknown";
    ErrorAt = "error_at", "when it was";
    UpdatedAt = "updated_at", "set whenever the row is marked";
}

impl Role {
    /// Reads the word that [`Self::as_str`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|role| role.as_str() == text)
    }

    /// Does Relevo write this column?
    pub fn is_mark(self) -> bool {
        matches!(self, Self::PublishedAt | Self::NextAttemptAt | Self::UpdatedAt)
            || self.is_failure()
    }

    /// Is it written when an attempt fails?
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Attempts | Self::Error | Self::ErrorClass | Self::ErrorAt)
    }
}

/// Where the topic comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopicFrom {
    /// The column [`Role::Topic`], after this prefix.
    Column {
        /// Put before the column's text.
        prefix: String,
    },
    /// The same for every row.
    Always(String),
}

/// Where the key comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyFrom {
    /// The column [`Role::Key`]; none, if it is not mapped: every row has an order of its own.
    Column,
    /// A value inside the JSON of the payload, word by word: `["ticket", "id"]`.
    Payload(Vec<String>),
}

/// A column that says in words what became of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The column.
    pub column: String,
    /// What it says of rows to be relayed.
    pub pending: Vec<String>,
    /// What it says after the confirm.
    pub published: String,
    /// What it says of a row that failed for good.
    pub dead: Option<String>,
}

impl Status {
    /// A column that says one of these words of rows to be relayed, and another one after the confirm.
    pub fn new<W: Into<String>>(
        column: impl Into<String>,
        pending: impl IntoIterator<Item = W>,
        published: impl Into<String>,
    ) -> Self {
        Self {
            column: column.into(),
            pending: pending.into_iter().map(Into::into).collect(),
            published: published.into(),
            dead: None,
        }
    }

    /// It says so of a row that failed for good.
    pub fn dead(mut self, word: impl Into<String>) -> Self {
        self.dead = Some(word.into());
        self
    }
}

/// The owner's table of dead letters. Columns of the same name are copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadTable {
    /// The table.
    pub table: TableName,
    /// Columns that only it has: error, error_class, error_at, attempts.
    pub columns: BTreeMap<Role, String>,
}

impl DeadTable {
    /// A table that has no columns but those of the rows.
    pub fn new(table: TableName) -> Self {
        Self { table, columns: BTreeMap::new() }
    }

    /// Only it has a column of this role, called so.
    pub fn with(mut self, role: Role, column: impl Into<String>) -> Self {
        self.columns.insert(role, column.into());
        self
    }
}

impl From<TableName> for DeadTable {
    fn from(table: TableName) -> Self {
        Self::new(table)
    }
}

/// What the columns of an existing outbox table mean. As JSON it lies beside the table, for whoever asks about a row
/// without the configuration that maps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Mapping {
    /// The table.
    pub table: TableName,
    /// Which column has which role.
    pub columns: BTreeMap<Role, String>,
    /// Where the topic comes from.
    pub topic: TopicFrom,
    /// Where the key comes from.
    pub key: KeyFrom,
    /// Media type of the payload, where the column's type does not tell.
    pub content_type: Option<String>,
    /// A column of states, if there is one.
    pub status: Option<Status>,
    /// A confirmed row is deleted rather than marked.
    pub delete: bool,
    /// Where rows go that failed for good.
    pub dead_letters: Option<DeadTable>,
}

impl Mapping {
    /// A table with columns `id`, `topic` and `payload`; say what else it has.
    pub fn new(table: TableName) -> Self {
        let columns = [Role::Id, Role::Topic, Role::Payload];
        Self {
            table,
            columns: columns.map(|role| (role, role.as_str().to_owned())).into(),
            topic: TopicFrom::Column { prefix: String::new() },
            key: KeyFrom::Column,
            content_type: None,
            status: None,
            delete: false,
            dead_letters: None,
        }
    }

    /// The column of this role is called so.
    pub fn with(mut self, role: Role, column: impl Into<String>) -> Self {
        self.columns.insert(role, column.into());
        self
    }

    /// There is no column of this role.
    pub fn without(mut self, role: Role) -> Self {
        self.columns.remove(&role);
        self
    }

    /// The key stands in the payload's JSON, at this path.
    pub fn key_in_payload<W: Into<String>>(mut self, path: impl IntoIterator<Item = W>) -> Self {
        self.key = KeyFrom::Payload(path.into_iter().map(Into::into).collect());
        self
    }

    /// Every row has this topic; no column tells it.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = TopicFrom::Always(topic.into());
        self.without(Role::Topic)
    }

    /// This stands before the topic that the column of [`Role::Topic`] tells.
    pub fn topic_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.topic = TopicFrom::Column { prefix: prefix.into() };
        self
    }

    /// The payload is of this media type, whatever its column's type tells.
    pub fn content_type(mut self, media_type: impl Into<String>) -> Self {
        self.content_type = Some(media_type.into());
        self
    }

    /// A column says in words what became of a row.
    pub fn status(mut self, status: Status) -> Self {
        self.status = Some(status);
        self
    }

    /// A confirmed row is deleted rather than marked.
    pub fn delete(mut self) -> Self {
        self.delete = true;
        self
    }

    /// The owner's table of dead letters: its name, or a [`DeadTable`] with columns that only it has.
    pub fn dead_letters(mut self, table: impl Into<DeadTable>) -> Self {
        self.dead_letters = Some(table.into());
        self
    }

    /// The column of a role.
    pub fn column(&self, role: Role) -> Option<&str> {
        self.columns.get(&role).map(String::as_str)
    }

    /// Does the table itself tell what was relayed? If not, that is kept beside it.
    pub fn marks_published(&self) -> bool {
        self.delete || self.status.is_some() || self.columns.contains_key(&Role::PublishedAt)
    }

    /// Does the table itself tell what failed for good?
    pub fn marks_dead(&self) -> bool {
        self.dead_letters.is_some() || self.status.as_ref().is_some_and(|it| it.dead.is_some())
    }

    /// Is a row of the table ever changed? Where that is forbidden, all state lives beside it.
    pub fn changes_rows(&self) -> bool {
        let marks = self.columns.keys().any(|role| role.is_mark());
        marks || self.delete || self.status.is_some() || self.dead_letters.is_some()
    }

    /// Refuses what cannot be meant; whether the table has these columns is another question.
    pub fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::new(Kind::UnfitTable, why));
        self.table.check()?;
        self.dead_letters.iter().try_for_each(|dead| dead.table.check())?;
        self.columns.values().try_for_each(|column| check_name(column))?;
        let needs_topic = matches!(self.topic, TopicFrom::Column { .. });
        for role in [Role::Id, Role::Payload, Role::Topic] {
            if self.column(role).is_none() && (role != Role::Topic || needs_topic) {
                return bad(format!("no column is named as {}: {}", role.as_str(), role.meaning()));
            }
        }
        if let (KeyFrom::Payload(path), Some(column)) = (&self.key, self.column(Role::Key)) {
            let path = path.join(".");
            return bad(format!(
                "the key is in column {} and at {} of the payload; keep one",
                quoted(column),
                quoted(&path)
            ));
        }
        self.check_ends()
    }

    /// How rows end must not contradict itself.
    fn check_ends(&self) -> Result<()> {
        let bad = |why: &str| Err(Error::new(Kind::UnfitTable, why));
        if self.delete && (self.status.is_some() || self.column(Role::PublishedAt).is_some()) {
            return bad("a confirmed row cannot be both deleted and marked; keep one");
        }
        let Some(status) = &self.status else { return Ok(()) };
        if status.pending.is_empty() {
            return bad("a column of states needs to say which ones are pending");
        }
        let ends = [Some(&status.published), status.dead.as_ref()];
        if ends.into_iter().flatten().any(|end| status.pending.contains(end)) {
            return bad(
                "a state is pending and an end at once: its rows would be relayed for ever",
            );
        }
        check_name(&status.column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TableName {
        TableName::parse("t").unwrap()
    }

    #[test]
    fn a_mapping_that_contradicts_itself_is_refused() {
        let status = |pending: &[&str]| Status::new("state", pending.iter().copied(), "SENT");
        assert!(Mapping::new(table()).check().is_ok());
        let both = Mapping::new(table()).with(Role::PublishedAt, "p").delete();
        let endless = Mapping::new(table()).status(status(&["NEW", "SENT"]));
        let nothing = Mapping::new(table()).status(status(&[]));
        let keys = Mapping::new(table()).with(Role::Key, "k").key_in_payload(["a"]);
        for wrong in [both, endless, nothing, keys, Mapping::new(table()).without(Role::Topic)] {
            assert_eq!(wrong.check().unwrap_err().kind(), Kind::UnfitTable, "{wrong:?}");
        }
    }

    #[test]
    fn a_role_survives_its_word() {
        for role in Role::ALL {
            assert_eq!(Role::parse(role.as_str()), Some(*role));
        }
    }
}
