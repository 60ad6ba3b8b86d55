//! What every command takes: which store, which configuration, which output.

use super::show::escaped;
use crate::config::{Config, FILE_NAME, Secret};
use crate::store::{self, Missing, Opened};
use relevo_core::limits::Limits;
use relevo_core::{Error, Kind, Result};
use std::path::PathBuf;

/// The variable that names a store.
pub const STORE_VARIABLE: &str = "RELEVO_STORE";

/// The store that the variable names.
fn variable() -> Option<Secret> {
    std::env::var(STORE_VARIABLE).ok().filter(|url| !url.is_empty()).map(Secret::new)
}

/// Options of every command.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Globals {
    /// The configuration [default: ./relevo.toml, if there is one]; its store goes before RELEVO_STORE
    #[arg(
        short,
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Options of every command"
    )]
    pub config: Option<PathBuf>,

    /// The store: postgres://..., sqlite:FILE, or a name in the configuration
    /// [default: that of -c, else RELEVO_STORE, else that of ./relevo.toml]
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

    /// The store's URL: `--store`, then `-c`, then `RELEVO_STORE`, then the configuration in this folder. Where two of
    /// them differ, standard error tells which one it is.
    pub fn store_url(&self) -> Result<Secret> {
        if let Some((said, url)) = self.stand_in()? {
            self.note_unused(&said, &url);
            return Ok(url);
        }
        let Some(config) = self.load_config()? else {
            return Err(Error::new(
                Kind::InvalidConfig,
                format!(
                    "no store is named; give --store sqlite:relevo.db or --store postgres://user@host/database, \
                     or set {STORE_VARIABLE}, or write a {FILE_NAME} with `relevo init`"
                ),
            ));
        };
        let url = config.store(None)?;
        self.note_variable(url);
        Ok(url.clone())
    }

    /// The URL that is used whatever the configuration's only store is, and who says so: `--store`, or without `-c` the
    /// variable.
    pub(crate) fn stand_in(&self) -> Result<Option<(String, Secret)>> {
        if let Some(given) = &self.store {
            return Ok(Some(("--store".into(), self.url_or_name(given)?)));
        }
        let variable = variable().filter(|_| self.config.is_none());
        Ok(variable.map(|url| (STORE_VARIABLE.into(), url)))
    }

    /// Tells that the file names another store than the one that is used. `--store` against a file nobody asked for is
    /// no news, and a file that cannot be read is not needed here.
    fn note_unused(&self, said: &str, used: &Secret) {
        let (Some(path), true) =
            (self.config_path(), self.config.is_some() || self.store.is_none())
        else {
            return;
        };
        let Ok(config) = Config::load(&path) else { return };
        if config.stores.is_empty() || config.stores.values().any(|url| url == used) {
            return;
        }
        let others: Vec<String> = config.stores.values().map(ToString::to_string).collect();
        let (others, path) = (others.join(" or "), path.display());
        self.note(&format!("the store is {used} ({said}), not {others} ({path})"));
    }

    /// Tells that the variable names another store than the file that is used.
    fn note_variable(&self, used: &Secret) {
        if let Some(unused) = variable().filter(|url| url != used) {
            let path = self.config_path().unwrap_or_default();
            let path = path.display();
            self.note(&format!("the store is {used} ({path}), not {unused} ({STORE_VARIABLE})"));
        }
    }

    /// Tells where every other command would take another store than this configuration's.
    pub(crate) fn note_store_of(&self, config: &Config) {
        match (self.stand_in(), config.store(None)) {
            (Ok(Some((said, url))), _) => self.note_unused(&said, &url),
            (Ok(None), Ok(used)) => self.note_variable(used),
            _ => {}
        }
    }

    fn note(&self, text: &str) {
        match self.json {
            true => eprintln!("{}", serde_json::json!({ "note": text })),
            false => eprintln!("note: {}", escaped(text)),
        }
    }

    fn url_or_name(&self, given: &str) -> Result<Secret> {
        let url = Secret::new(given);
        if url.scheme().is_some() || given.contains('=') {
            return Ok(url);
        }
        match self.load_config()? {
            Some(config) => config.store(Some(given)).cloned().map_err(|error| {
                let message = format!("{}; a file is written sqlite:FILE", error.message());
                Error::new(error.kind(), message)
            }),
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
