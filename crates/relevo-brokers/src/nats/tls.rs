use super::NAME;
use super::config::TlsFiles;
use async_nats::rustls::crypto::aws_lc_rs;
use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{ClientConfig, RootCertStore};
use relevo_core::error::{Error, Kind, Result};
use std::path::Path;
use std::sync::Arc;

/// The TLS side of a connection. It names its cryptography itself: an application that links two of them must not
/// panic here.
pub(super) fn client_config(files: &TlsFiles) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots(&files.authorities)?);
    let Some((certificate, key)) = &files.client else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| bad(format!("the key {} cannot be read: {error}", key.display())))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| {
        bad(format!("the certificate {} cannot be used: {error}", certificate.display()))
    })
}

/// The authorities of the files, or the system's if there are none.
fn roots(files: &[impl AsRef<Path>]) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    for file in files {
        for certificate in certificates(file.as_ref())? {
            store.add(certificate).map_err(|error| {
                bad(format!("{} is not an authority: {error}", file.as_ref().display()))
            })?;
        }
    }
    if files.is_empty() {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a certificate of the system cannot be read");
        }
        store.add_parsable_certificates(found.certs);
    }
    Ok(store)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = |error| bad(format!("{} cannot be read: {error}", file.display()));
    let found: Vec<_> = CertificateDer::pem_file_iter(file)
        .map_err(read)?
        .collect::<Result<_, _>>()
        .map_err(read)?;
    if found.is_empty() {
        return Err(bad(format!("{} has no certificate", file.display())));
    }
    Ok(found)
}

fn bad(why: String) -> Error {
    Error::new(Kind::InvalidConfig, why).from_adapter(NAME)
}
