//! Rules of access: who may do what, told to a broker that runs.

use super::protocol::{Rest, exchange, put_text};
use std::io::{Error, Result};
use std::net::SocketAddr;

const CREATE: u16 = 30;
const DELETE: u16 = 31;
const VERSION: u16 = 1;

const TOPIC: u8 = 2;
const GROUP: u8 = 3;
const BY_THIS_NAME: u8 = 3;
const READ: u8 = 3;
const WRITE: u8 = 4;
const DESCRIBE: u8 = 8;
const ALLOW: u8 = 3;

/// Something that a user may do, for [`Kafka::permit`](super::Kafka::permit).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaRight {
    of: u8,
    name: String,
    operation: u8,
}

impl KafkaRight {
    /// Writing to a topic; seeing that it is there comes with it.
    pub fn write(topic: &str) -> KafkaRight {
        KafkaRight { of: TOPIC, name: topic.to_owned(), operation: WRITE }
    }

    /// Reading a topic; seeing that it is there comes with it.
    pub fn read(topic: &str) -> KafkaRight {
        KafkaRight { of: TOPIC, name: topic.to_owned(), operation: READ }
    }

    /// Seeing that a topic is there, and no more.
    pub fn describe(topic: &str) -> KafkaRight {
        KafkaRight { of: TOPIC, name: topic.to_owned(), operation: DESCRIBE }
    }

    /// Being a member of a group.
    pub fn group(name: &str) -> KafkaRight {
        KafkaRight { of: GROUP, name: name.to_owned(), operation: READ }
    }

    /// The rule: also the filter that finds it.
    fn rule_for(&self, user: &str) -> Vec<u8> {
        let mut rule = 1_u32.to_be_bytes().to_vec();
        rule.push(self.of);
        put_text(&mut rule, &self.name);
        rule.push(BY_THIS_NAME);
        put_text(&mut rule, &format!("User:{user}"));
        put_text(&mut rule, "*");
        rule.extend([self.operation, ALLOW]);
        rule
    }
}

pub(super) fn give(at: SocketAddr, user: &str, right: &KafkaRight) -> Result<()> {
    check(&exchange(at, CREATE, VERSION, &right.rule_for(user))?)
}

pub(super) fn take_away(at: SocketAddr, user: &str, right: &KafkaRight) -> Result<()> {
    check(&exchange(at, DELETE, VERSION, &right.rule_for(user))?)
}

/// Both answers begin with the number of results and the first one's error.
fn check(answer: &[u8]) -> Result<()> {
    let mut rest = Rest(answer);
    let (_correlation, _throttle, _results) = (rest.number()?, rest.number()?, rest.number()?);
    match u16::from_be_bytes(rest.take()?) {
        0 => Ok(()),
        code => Err(Error::other(format!("the broker does not change the rule: error {code}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_the_answer_is_one() {
        assert!(check(&[0; 14]).is_ok());
        let mut refused = [0; 14];
        refused[13] = 31;
        assert!(check(&refused).unwrap_err().to_string().contains("31"));
        assert!(check(&[0; 13]).is_err());
    }

    #[test]
    fn a_rule_names_resource_user_host_and_operation() {
        let rule = KafkaRight::write("t").rule_for("u");
        assert_eq!(rule, b"\0\0\0\x01\x02\0\x01t\x03\0\x06User:u\0\x01*\x04\x03");
    }
}
