//! Encrypted connections: with the feature `tls` by rustls, without it none.

#[cfg(feature = "tls")]
mod verify;
#[cfg(feature = "tls")]
mod with;
#[cfg(not(feature = "tls"))]
mod without;

#[cfg(feature = "tls")]
pub(super) use with::{Connector, connector};
#[cfg(not(feature = "tls"))]
pub(super) use without::{Connector, connector};

/// Whether this build can encrypt at all.
pub(super) const SPEAKS_TLS: bool = cfg!(feature = "tls");
