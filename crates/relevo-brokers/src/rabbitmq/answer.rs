use lapin::ErrorKind;
use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;

/// Who is to blame for a channel that the broker closed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// Every message to this exchange: it is not there, or may not be written to.
    Exchange(String),
    /// Every message of more bytes.
    Larger(usize),
    /// Nobody in particular.
    Nobody,
}

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;

/// What the broker's last words on a channel say of the messages that it did not answer.
pub(super) fn blame(error: &lapin::Error) -> Blame {
    let ErrorKind::ProtocolError(said) = error.kind() else { return Blame::Nobody };
    blame_for(said.get_id(), said.get_message().as_str())
}

fn blame_for(code: u16, text: &str) -> Blame {
    match code {
        // "no exchange 'orders' in vhost '/'", "access to exchange 'orders' in vhost '/' refused for user 'app'"
        NOT_FOUND | ACCESS_REFUSED => match quoted_after(text, "exchange '") {
            Some(exchange) => Blame::Exchange(exchange.to_owned()),
            None => Blame::Nobody,
        },
        // "message size 70000 is larger than configured max size 65536", the older "message size 7 larger than max size 6"
        PRECONDITION_FAILED if text.contains("larger than") => {
            text.rsplit(' ').find_map(|word| word.parse().ok()).map_or(Blame::Nobody, Blame::Larger)
        }
        _ => Blame::Nobody,
    }
}

fn quoted_after<'t>(text: &'t str, marker: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(marker)?;
    rest.split_once('\'').map(|(name, _)| name)
}

pub(super) fn refused(class: ErrorClass, error: impl Into<String>) -> Confirm {
    Confirm::Refused { class, error: error.into(), after: None }
}

pub(super) fn too_large(bytes: usize, limit: usize) -> Confirm {
    refused(ErrorClass::Poison, format!("{bytes} bytes, the broker takes {limit} in one message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_channel_is_the_fault_of_whom_the_broker_names() {
        let missing = "NOT_FOUND - no exchange 'orders' in vhost '/'";
        assert_eq!(blame_for(404, missing), Blame::Exchange("orders".into()));
        let refused =
            "ACCESS_REFUSED - access to exchange 'x y' in vhost '/' refused for user 'app'";
        assert_eq!(blame_for(403, refused), Blame::Exchange("x y".into()));
        for text in [
            "PRECONDITION_FAILED - message size 70000 is larger than configured max size 65536",
            "PRECONDITION_FAILED - message size 70000 larger than max size 65536",
        ] {
            assert_eq!(blame_for(406, text), Blame::Larger(65536));
        }
        for (code, text) in [(406, "unknown delivery tag 7"), (404, "no queue 'q'"), (541, "boom")]
        {
            assert_eq!(blame_for(code, text), Blame::Nobody, "{text}");
        }
    }
}
