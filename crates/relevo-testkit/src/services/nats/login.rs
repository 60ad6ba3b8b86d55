//! How clients show who they are: a password, a token, an nkey, or a credentials file.

use super::super::process::ServerProcess;
use super::super::{Result, ServiceError};
use super::NatsOptions;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

pub(super) const USER: &str = "relevo";
pub(super) const PASSWORD: &str = "relevo";
pub(super) const ACCOUNT: &str = "APP";
const TOKEN: &str = "open-sesame";

/// How clients log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NatsLogin {
    /// User and password, as part of the URL.
    #[default]
    Password,
    /// A token, as part of the URL. There are no accounts then.
    Token,
    /// An nkey: the server knows the public half, the client signs with the seed.
    Nkey,
    /// A credentials file: a token signed by an account, which an operator signed.
    Credentials,
}

/// What the server's configuration says about users, and what a client needs.
#[derive(Debug, Default)]
pub(super) struct Login {
    pub(super) configuration: String,
    /// What a URL has before the host.
    pub(super) in_url: Option<String>,
    pub(super) seed: Option<String>,
    pub(super) credentials: Option<PathBuf>,
}

impl Login {
    pub(super) fn new(options: &NatsOptions, process: &ServerProcess) -> Result<Login> {
        match options.login {
            NatsLogin::Password => Ok(password(options)),
            NatsLogin::Token => Ok(by_token()),
            NatsLogin::Nkey => nkey(options).map_err(failed),
            NatsLogin::Credentials => credentials(process),
        }
    }
}

/// One account with JetStream and its users, beside the system's own.
fn accounts(first: &str, options: &NatsOptions) -> String {
    let mut users = format!("{{ {first} }}");
    for (name, permissions) in &options.users {
        let _ = write!(
            users,
            ", {{ user: {name}, password: {PASSWORD}, permissions: {{ {permissions} }} }}"
        );
    }
    let jetstream = if options.no_jetstream { "disabled" } else { "enabled" };
    format!(
        "accounts {{\n  {ACCOUNT}: {{ jetstream: {jetstream}, users: [{users}] }}\n  \
         $SYS: {{ users: [{{ user: system, password: {PASSWORD} }}] }}\n}}\n"
    )
}

fn password(options: &NatsOptions) -> Login {
    Login {
        configuration: accounts(&format!("user: {USER}, password: {PASSWORD}"), options),
        in_url: Some(format!("{USER}:{PASSWORD}")),
        ..Login::default()
    }
}

fn by_token() -> Login {
    Login {
        configuration: format!("authorization {{ token: {TOKEN} }}\n"),
        in_url: Some(TOKEN.to_owned()),
        ..Login::default()
    }
}

fn nkey(options: &NatsOptions) -> std::result::Result<Login, nkeys::error::Error> {
    let user = KeyPair::new_user();
    let configuration = accounts(&format!("nkey: {}", user.public_key()), options);
    Ok(Login { configuration, seed: Some(user.seed()?), ..Login::default() })
}

fn credentials(process: &ServerProcess) -> Result<Login> {
    let (operator, system) = (KeyPair::new_operator(), KeyPair::new_account());
    let (account, user) = (KeyPair::new_account(), KeyPair::new_user());
    let sign = |claims, name, of: &KeyPair, by: &KeyPair| {
        token(claims, name, &of.public_key(), by).map_err(failed)
    };
    let of_operator =
        json!({ "type": "operator", "version": 2, "system_account": system.public_key() });
    let of_operator = sign(of_operator, "operator", &operator, &operator)?;
    let of_system = sign(account_claims(0), "SYS", &system, &operator)?;
    let of_account = sign(account_claims(-1), "APP", &account, &operator)?;
    let of_user = sign(user_claims(), USER, &user, &account)?;
    let configuration = format!(
        "operator: {of_operator}\nsystem_account: {0}\nresolver: MEMORY\n\
         resolver_preload {{\n  {0}: {of_system}\n  {1}: {of_account}\n}}\n",
        system.public_key(),
        account.public_key(),
    );
    let file = credentials_file(&of_user, &user.seed().map_err(failed)?);
    let credentials = Some(process.write("user.creds", &file)?);
    Ok(Login { configuration, credentials, ..Login::default() })
}

/// An account without limits but that of its storage: -1 is none, and 0 is no JetStream, which the
/// system's account must not have.
fn account_claims(storage: i64) -> Value {
    let unlimited = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": storage, "disk_storage": storage, "streams": -1,
        "consumer": -1,
    });
    json!({ "type": "account", "version": 2, "limits": unlimited })
}

fn user_claims() -> Value {
    json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 })
}

/// A JSON web token as NATS signs them: Ed25519 with an nkey.
fn token(
    claims: Value,
    name: &str,
    subject: &str,
    signer: &KeyPair,
) -> std::result::Result<String, nkeys::error::Error> {
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encode(json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let body = encode(json!({
        "jti": subject, "iat": 1_700_000_000, "iss": signer.public_key(), "name": name,
        "sub": subject, "nats": claims,
    }));
    let signed = format!("{header}.{body}");
    let signature = signer.sign(signed.as_bytes())?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

fn credentials_file(token: &str, seed: &str) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

fn failed(error: nkeys::error::Error) -> ServiceError {
    ServiceError::failed("NATS", error)
}
