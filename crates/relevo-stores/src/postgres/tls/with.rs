use super::verify::Lenient;
use crate::postgres::address::{Certificates, Checked};
use crate::postgres::errors::error;
use relevo_core::{Error, Kind, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use tokio_postgres::config::SslMode;

/// Speaks TLS where the server does.
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;

pub(crate) fn connector(certificates: &Certificates, mode: SslMode) -> Result<Connector> {
    // It names its cryptography itself: an application that links two of them must not panic here.
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|cause| bad(format!("TLS cannot be set up: {cause}")))?
        .dangerous()
        .with_custom_certificate_verifier(verifier(certificates, mode)?);
    let config = match (&certificates.certificate, &certificates.key) {
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|cause| unreadable(key, &cause))?;
            builder.with_client_auth_cert(read(certificate)?, key).map_err(|cause| {
                bad(format!("the certificate {} cannot be used: {cause}", certificate.display()))
            })?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(Connector::new(config))
}

fn verifier(certificates: &Certificates, mode: SslMode) -> Result<Arc<dyn ServerCertVerifier>> {
    if mode == SslMode::Disable || certificates.checked == Checked::Nothing {
        return Ok(Arc::new(Lenient::new(None)));
    }
    let roots = Arc::new(roots(certificates.authorities.as_deref())?);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let strict = WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|cause| bad(format!("no authority can be believed: {cause}")))?;
    Ok(match certificates.checked {
        Checked::AuthorityAndName => strict,
        Checked::Authority | Checked::Nothing => Arc::new(Lenient::new(Some(strict))),
    })
}

/// The authorities of the file, or the system's.
fn roots(file: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let Some(file) = file else {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a certificate of the system cannot be read");
        }
        store.add_parsable_certificates(found.certs);
        return Ok(store);
    };
    for certificate in read(file)? {
        store
            .add(certificate)
            .map_err(|cause| bad(format!("{} is not an authority: {cause}", file.display())))?;
    }
    Ok(store)
}

fn read(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<std::result::Result<_, _>>)
        .map_err(|cause| unreadable(file, &cause))?;
    if found.is_empty() {
        return Err(bad(format!("{} has no certificate", file.display())));
    }
    Ok(found)
}

fn unreadable(file: &Path, cause: &dyn std::fmt::Display) -> Error {
    bad(format!("{} cannot be read: {cause}", file.display()))
}

fn bad(why: String) -> Error {
    error(Kind::InvalidUrl, why)
}
