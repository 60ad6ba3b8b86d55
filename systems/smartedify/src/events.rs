//! What happens to tenants, as it travels.

use relevo::Event;
use serde::{Deserialize, Serialize};

/// How an assembly of owners decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Governance {
    /// The share that must be present, 1 to 100.
    pub quorum_percent: u8,
    /// How votes count.
    pub voting: Voting,
    /// Who presides, if anybody does yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub president: Option<String>,
}

/// How votes count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Voting {
    /// Each owner has one.
    ByHead,
    /// By the share of the property.
    ByShare,
}

impl Governance {
    /// What cannot be meant, if anything.
    pub fn problem(&self) -> Option<String> {
        let wrong = !(1..=100).contains(&self.quorum_percent);
        wrong.then(|| format!("quorum_percent is {}, not 1 to 100", self.quorum_percent))
    }
}

/// A change. The document names `governance.changed` and implies the others; their names are ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Change {
    /// A tenant is there.
    #[serde(rename = "tenant.created")]
    TenantCreated {
        /// Its name.
        name: String,
    },
    /// It has another name.
    #[serde(rename = "tenant.updated")]
    TenantUpdated {
        /// The new one.
        name: String,
    },
    /// It decides in another way.
    #[serde(rename = "governance.changed")]
    GovernanceChanged {
        /// The new one.
        governance: Governance,
    },
    /// Somebody belongs to it.
    #[serde(rename = "user.added")]
    UserAdded {
        /// Who.
        user_id: String,
        /// Where mail reaches them.
        email: String,
        /// What they may do.
        role: String,
    },
    /// Its owners will meet.
    #[serde(rename = "assembly.scheduled")]
    AssemblyScheduled {
        /// Which meeting.
        assembly_id: String,
        /// What about.
        title: String,
        /// When.
        scheduled_for: chrono::DateTime<chrono::Utc>,
    },
}

impl Change {
    /// Its event type, which is the topic.
    pub fn event_type(&self) -> &'static str {
        match self {
            Self::TenantCreated { .. } => "tenant.created",
            Self::TenantUpdated { .. } => "tenant.updated",
            Self::GovernanceChanged { .. } => "governance.changed",
            Self::UserAdded { .. } => "user.added",
            Self::AssemblyScheduled { .. } => "assembly.scheduled",
        }
    }
}

/// An event's payload. The tenant is the aggregate: its users and assemblies are changes of it, in one order with the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantEvent {
    /// Whose.
    pub tenant_id: String,
    /// The tenant's version after the change: 1, 2, 3 ... without a gap.
    pub version: i64,
    /// What.
    #[serde(flatten)]
    pub change: Change,
}

/// The payload makes no sense, and never will: a permanent error.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the payload makes no sense: {0}")]
pub struct Invalid(String);

impl TenantEvent {
    /// Reads and checks an event.
    pub fn read(event: &Event) -> Result<Self, Invalid> {
        let read: Self =
            serde_json::from_slice(&event.payload).map_err(|e| Invalid(e.to_string()))?;
        let expect = |holds: bool, what: &str| match holds {
            true => Ok(()),
            false => Err(Invalid(what.to_owned())),
        };
        expect(read.change.event_type() == event.topic, "its type is not the event's")?;
        expect(event.key.as_deref() == Some(&*read.tenant_id), "it is of another tenant")?;
        expect(read.version >= 1, "versions begin with 1")?;
        match &read.change {
            Change::GovernanceChanged { governance } => {
                governance.problem().map_or(Ok(read), |problem| Err(Invalid(problem)))
            }
            _ => Ok(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo::NewEvent;

    fn event(topic: &str, key: &str, payload: &str) -> Event {
        Event::stored(NewEvent::bytes(topic, payload.to_owned()).key(key), chrono::Utc::now())
    }

    #[test]
    fn what_is_written_is_read() {
        let governance =
            Governance { quorum_percent: 51, voting: Voting::ByShare, president: None };
        let change = Change::GovernanceChanged { governance };
        let written = TenantEvent { tenant_id: "t".into(), version: 3, change };
        let payload = serde_json::to_string(&written).unwrap();
        assert!(payload.contains(r#""type":"governance.changed""#), "{payload}");
        assert_eq!(TenantEvent::read(&event("governance.changed", "t", &payload)), Ok(written));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_reason() {
        let quorum = r#"{"type":"governance.changed","tenant_id":"t","version":1,
            "governance":{"quorum_percent":140,"voting":"by_head"}}"#;
        let created = r#"{"type":"tenant.created","tenant_id":"t","version":1,"name":"n"}"#;
        for (topic, key, payload, why) in [
            ("governance.changed", "t", quorum, "quorum_percent is 140"),
            ("governance.changed", "t", created, "type is not"),
            ("tenant.created", "u", created, "another tenant"),
            ("tenant.created", "t", "{}", "missing field"),
            ("tenant.created", "t", "no JSON", "expected"),
            (
                "tenant.deleted",
                "t",
                r#"{"type":"tenant.deleted","tenant_id":"t","version":1}"#,
                "unknown variant",
            ),
        ] {
            let error = TenantEvent::read(&event(topic, key, payload)).unwrap_err().to_string();
            assert!(error.contains(why), "{payload}: {error}");
        }
    }
}
