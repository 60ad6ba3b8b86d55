//! What every command takes: which store, which configuration, which output.

use crate::config::{Config, FILE_NAME, Secret};
use crate::store::{self, Missing, Opened};
use relevo_core::limits::Limits;
use relevo_core::{Error, Kind, Result};
use std::path::PathBuf;

/// The variable that names a store.
pub const STORE_VARIABLE: &str = "RELEVO_STORE";

/// Options of every command.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Globals {
    /// The configuration [default: ./relevo.toml, if there is one]
    #[arg(
        short,
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Options of every command"
    )]
    pub config: Option<PathBuf>,

    /// The store: postgres://..., sqlite:FILE, or a name in the configuration [or the variable RELEVO_STORE]
    #[arg(long, global = true, value_name = "URL", help_heading = "Options of every command")]
    pub store: Option<String>,

    /// Print JSON, with field names that stay
    #[arg(long, global = true, help_heading = "Options of every command")]
    pub json: bool,
}

impl Globals {
    /// The file meant by `-c`, or the one in this folder.
    pub fn config_path(&self) -> Option<PathBuf> {
        let here = || Some(PathBuf::from(FILE_NAME)).filter(|path| path.exists());
        self.config.clone().or_else(here)
    }

    /// The configuration, if there is one.
    pub fn load_config(&self) -> Result<Option<Config>> {
        self.config_path().map(|path| Config::load(&path)).transpose()
    }

    /// The configuration, which must be there.
    pub fn require_config(&self) -> Result<Config> {
        self.load_config()?.ok_or_else(|| {
            Error::new(
                Kind::InvalidConfig,
                format!(
                    "there is no {FILE_NAME} here; `relevo init` writes one, -c FILE names another"
                ),
            )
        })
    }

    /// The store's URL: `--store`, then `-c`, then `RELEVO_STORE`, then the configuration in this folder.
    pub fn store_url(&self) -> Result<Secret> {
        if let Some(given) = &self.store {
            return self.url_or_name(given);
        }
        if self.config.is_none()
            && let Some(url) = std::env::var(STORE_VARIABLE).ok().filter(|url| !url.is_empty())
        {
            return Ok(Secret::new(url));
        }
        match self.load_config()? {
            Some(config) => config.store(None).cloned(),
            None => Err(Error::new(
                Kind::InvalidConfig,
                format!(
                    "no store is named; give --store sqlite:relevo.db or --store postgres://user@host/database, \
                     or set {STORE_VARIABLE}, or write a {FILE_NAME} with `relevo init`"
                ),
            )),
        }
    }

    fn url_or_name(&self, given: &str) -> Result<Secret> {
        let url = Secret::new(given);
        if url.scheme().is_some() || given.contains('=') {
            return Ok(url);
        }
        match self.load_config()? {
            Some(config) => config.store(Some(given)).cloned(),
            None => Ok(url),
        }
    }

    /// Opens the store.
    pub async fn open(&self, missing: Missing) -> Result<Opened> {
        store::open(&self.store_url()?, missing).await
    }

    /// Opens a store that must be there already.
    pub(crate) async fn open_existing(&self) -> Result<Opened> {
        self.open(Missing::Refuse).await
    }

    /// What may be published.
    pub fn limits(&self) -> Result<Limits> {
        Ok(self.load_config()?.map(|config| config.limits).unwrap_or_default())
    }
}
