//! Which adapter a URL names, and which of them this build has.

use crate::config::{Secret, did_you_mean};
use relevo_core::error::quoted;
use relevo_core::{Error, Kind, Result};

/// The kinds of broker a URL can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adapter {
    /// `http://`, `https://`
    Http,
    /// `amqp://`, `amqps://`
    RabbitMq,
    /// `nats://`, `tls://`
    Nats,
    /// `kafka://`, `kafkas://`
    Kafka,
    /// `stdout:`
    Stdout,
}

/// What is known of an adapter.
#[derive(Debug)]
#[non_exhaustive]
pub struct Known {
    /// Which one.
    pub adapter: Adapter,
    /// The schemes of its URLs.
    pub schemes: &'static [&'static str],
    /// How its URLs are written.
    pub example: &'static str,
    /// The feature of this crate that it needs, if any.
    pub feature: Option<&'static str>,
    /// Is it part of this build?
    pub is_built: bool,
}

impl Adapter {
    /// Every adapter, in the order in which people are told of them.
    pub const KNOWN: [Known; 5] = [
        Known {
            adapter: Self::Http,
            schemes: &["http", "https"],
            example: "http://HOST/PATH",
            feature: None,
            is_built: true,
        },
        Known {
            adapter: Self::RabbitMq,
            schemes: &["amqp", "amqps"],
            example: "amqp://USER@HOST/VHOST",
            feature: Some("rabbitmq"),
            is_built: cfg!(feature = "rabbitmq"),
        },
        Known {
            adapter: Self::Nats,
            schemes: &["nats", "tls"],
            example: "nats://HOST:4222",
            feature: Some("nats"),
            is_built: cfg!(feature = "nats"),
        },
        Known {
            adapter: Self::Kafka,
            schemes: &["kafka", "kafkas"],
            example: "kafka://HOST:9092",
            feature: Some("kafka"),
            is_built: cfg!(feature = "kafka"),
        },
        Known {
            adapter: Self::Stdout,
            schemes: &["stdout"],
            example: "stdout:",
            feature: None,
            is_built: true,
        },
    ];

    /// The adapter that a URL names, if this build has it. The error never repeats the URL.
    pub fn of(url: &Secret) -> Result<Self> {
        let bad = |why: String| Error::new(Kind::InvalidConfig, why);
        let Some(scheme) = url.scheme() else {
            let why = format!("a URL begins with its scheme: {}", destinations());
            return Err(bad(why));
        };
        let all = || Self::KNOWN.iter().flat_map(|known| known.schemes.iter().copied());
        let Some(known) = Self::KNOWN.iter().find(|known| known.schemes.contains(&scheme)) else {
            let near = did_you_mean(scheme, all());
            let why = format!("the scheme {} names no broker{near}", quoted(scheme));
            return Err(bad(format!("{why}; events go to {}", destinations())));
        };
        if known.is_built { Ok(known.adapter) } else { Err(known.adapter.is_not_built()) }
    }

    /// The schemes of its URLs.
    pub fn schemes(self) -> &'static [&'static str] {
        self.known().map_or(&[], |known| known.schemes)
    }

    fn known(self) -> Option<&'static Known> {
        const { &Self::KNOWN }.iter().find(|known| known.adapter == self)
    }

    pub(super) fn is_not_built(self) -> Error {
        let feature = self.known().and_then(|known| known.feature).unwrap_or("full");
        let why = format!(
            "this build has no adapter for it: it is made with the feature {feature}; events go to {}",
            destinations()
        );
        Error::new(Kind::InvalidConfig, why)
    }
}

/// The destinations of this build, for people.
fn destinations() -> String {
    let built = Adapter::KNOWN.iter().filter(|known| known.is_built);
    let examples: Vec<&str> = built.map(|known| known.example).collect();
    match examples.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => examples.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_picks_the_adapter() {
        for known in Adapter::KNOWN.iter().filter(|known| known.is_built) {
            for scheme in known.schemes {
                let url = Secret::new(format!("{scheme}://h"));
                assert_eq!(Adapter::of(&url).unwrap(), known.adapter);
            }
        }
    }

    #[test]
    fn a_url_of_no_broker_teaches_and_never_shows_its_password() {
        for url in ["", "rabbit", "htpp://u:s3cret@h", "mqtt://s3cret@h", "s3cret"] {
            let error = Adapter::of(&Secret::new(url)).unwrap_err();
            assert!(error.message().contains("http://HOST/PATH"), "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        let error = Adapter::of(&Secret::new("htpp://h")).unwrap_err();
        assert!(error.message().contains("did you mean \"http\""), "{error}");
    }
}
