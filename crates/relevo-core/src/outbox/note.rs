use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a process says of itself with each sign of life, for operators to read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MemberNote {
    /// It finds the destination down.
    pub breaker: Option<OpenBreaker>,
    /// Lanes that stopped and need a person, each with its reason.
    pub stopped: BTreeMap<u16, String>,
}

/// A destination that is taken to be down: nothing is handed over but a probe now and then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenBreaker {
    /// What the destination last answered, or did not.
    pub reason: String,
    /// For how long, in seconds, when it was said.
    pub open_s: f64,
}

impl MemberNote {
    /// Reads a note as a store kept it. One of another version, or of no process of ours, says nothing.
    pub fn read(note: &serde_json::Value) -> Self {
        serde::Deserialize::deserialize(note).unwrap_or_default()
    }

    /// The open breaker, as it stands `silent_s` after the note was written.
    pub fn breaker_after(self, silent_s: f64) -> Option<OpenBreaker> {
        self.breaker.map(|it| OpenBreaker { open_s: it.open_s + silent_s.max(0.0), ..it })
    }
}

impl std::fmt::Display for MemberNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| std::fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_a_strange_one_says_nothing() {
        let breaker = OpenBreaker { reason: "refused".into(), open_s: 1.5 };
        let note = MemberNote {
            breaker: Some(breaker.clone()),
            stopped: BTreeMap::from([(3, "too many".into())]),
        };
        let kept = serde_json::from_str(&note.to_string()).unwrap();
        assert_eq!(MemberNote::read(&kept), note);
        assert_eq!(note.breaker_after(2.0), Some(OpenBreaker { open_s: 3.5, ..breaker }));
        for strange in ["null", "{}", "[]", r#"{"note": "hello"}"#, r#"{"breaker": "open"}"#] {
            let strange = serde_json::from_str(strange).unwrap();
            assert_eq!(MemberNote::read(&strange), MemberNote::default());
        }
    }
}
