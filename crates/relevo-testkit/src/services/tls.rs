//! Certificates for one test run: an authority, a server's and a client's.

use super::process::ServerProcess;
use super::{Result, ServiceError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Whom the client's certificate names. Servers that log clients in by certificate know this user.
pub(crate) const CLIENT: &str = "relevo";

/// An authority with the certificates it signed, all as PEM. Keys are EC P-256, PKCS#8.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Certificates {
    /// The authority's own certificate: what both sides have to trust.
    pub ca: String,
    /// The server's.
    pub server: Identity,
    /// The client's; its common name is `relevo`.
    pub client: Identity,
}

/// A certificate and its private key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Certificates {
    /// A new authority, with a server's certificate for `localhost` and `127.0.0.1`.
    pub fn new() -> Result<Certificates> {
        Certificates::for_names(&["localhost", "127.0.0.1"])
    }

    /// A new authority, with a server's certificate for other names: clients that check the name
    /// must refuse a server of this kit that has it.
    pub fn for_names(names: &[&str]) -> Result<Certificates> {
        sign_all(names).map_err(|error| ServiceError::failed("Certificates", error))
    }

    /// One authority for all tests of this process.
    pub fn shared() -> Result<Arc<Certificates>> {
        static SHARED: OnceLock<Result<Arc<Certificates>>> = OnceLock::new();
        SHARED.get_or_init(|| Certificates::new().map(Arc::new)).clone()
    }

    /// Writes them into a server's folder.
    pub(crate) fn write(&self, process: &ServerProcess) -> Result<TlsFiles> {
        // Some servers want the key and the certificate in one file.
        let both = format!("{}{}", self.server.key, self.server.certificate);
        process.write_secret("server-both.pem", &both)?;
        process.write("server.pem", &self.server.certificate)?;
        process.write_secret("server.key", &self.server.key)?;
        Ok(TlsFiles {
            ca: process.write("ca.pem", &self.ca)?,
            certificate: process.write("client.pem", &self.client.certificate)?,
            key: process.write_secret("client.key", &self.client.key)?,
        })
    }
}

/// What a client of a server with TLS needs, in files that live as long as the server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The authority to trust.
    pub ca: PathBuf,
    /// The client's certificate.
    pub certificate: PathBuf,
    /// The client's key.
    pub key: PathBuf,
}

/// Whether a server asks its clients for certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Clients may come without one; where the protocol allows, one that comes is checked.
    Optional,
    /// Clients without a certificate of the same authority are refused.
    Required,
}

fn sign_all(names: &[&str]) -> Result<Certificates, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut authority = named("Relevo test authority", &[])?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca = authority.self_signed(&key)?.pem();
    let issuer = Issuer::new(authority, key);
    let server_name = names.first().copied().unwrap_or("server");
    // Nodes of a cluster are clients of each other.
    let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(Certificates {
        ca,
        server: sign(named(server_name, names)?, &both, &issuer)?,
        client: sign(named(CLIENT, &[])?, &both[1..], &issuer)?,
    })
}

fn named(common_name: &str, names: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    // Names that are addresses become addresses.
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

fn sign(
    mut params: CertificateParams,
    purposes: &[ExtendedKeyUsagePurpose],
    issuer: &Issuer<'_, KeyPair>,
) -> Result<Identity, rcgen::Error> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = purposes.to_vec();
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?.pem();
    Ok(Identity { certificate, key: key.serialize_pem() })
}
