//! Standard Webhooks signatures: HMAC-SHA256 over id, time and body.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use relevo_core::error::{Error, Kind, Result};
use sha2::Sha256;
use std::fmt;

/// A signing secret. It never prints.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Reads `whsec_` followed by the base64 of at least 16 bytes (24 to 64 are recommended).
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::new(Kind::InvalidConfig, format!("the webhook secret {why}"))
                .from_adapter("http")
        };
        let encoded =
            text.trim().strip_prefix("whsec_").ok_or_else(|| bad("does not start with whsec_"))?;
        let bytes = STANDARD.decode(encoded).map_err(|_| bad("is not base64 after whsec_"))?;
        if bytes.len() < 16 {
            return Err(bad("has fewer than 16 bytes"));
        }
        Ok(Self(bytes))
    }

    /// `v1,` and the signature of `id.timestamp.body`.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        // HMAC takes keys of any length: this cannot fail.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// The value of `webhook-signature`: one signature for each secret, so that secrets can be rotated.
pub(super) fn signatures(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let all: Vec<String> = secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[test]
    fn the_published_example_of_standard_webhooks_comes_out() {
        let body = br#"{"test": 2432232314}"#;
        let signature =
            Secret::parse(SECRET).unwrap().sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn every_secret_signs_while_they_are_rotated() {
        let secrets = [
            Secret::parse(SECRET).unwrap(),
            Secret::parse("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap(),
        ];
        let all = signatures(&secrets, "id", 1, b"");
        assert_eq!(all.split(' ').filter(|one| one.starts_with("v1,")).count(), 2);
    }

    #[test]
    fn a_secret_that_is_none_is_refused_and_none_is_ever_printed() {
        for text in ["", "hello", "whsec_", "whsec_*secret*", "whsec_c2hvcnQ="] {
            let error = Secret::parse(text).unwrap_err().to_string();
            let hidden = text.strip_prefix("whsec_").filter(|rest| !rest.is_empty());
            assert!(hidden.is_none_or(|rest| !error.contains(rest)), "{error}");
        }
        assert!(!format!("{:?}", Secret::parse(SECRET).unwrap()).contains("Mf"));
    }
}
