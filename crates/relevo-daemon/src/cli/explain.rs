//! `relevo explain CODE`: the pages of docs/errors/, built in.

use super::failure::{Outcome, missing};
use super::output::{Column, Output};
use crate::config::did_you_mean;
use relevo_core::Kind;
use serde_json::json;
use std::process::ExitCode;

// PAGES: (code, text) of every page there was when this was built.
include!(concat!(env!("OUT_DIR"), "/error_pages.rs"));

/// What an error code means, and what to do
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  relevo explain R0007\n  relevo explain          every code there is"
)]
pub(super) struct Explain {
    /// The code, such as R0007; without it, all codes
    code: Option<String>,
}

impl Explain {
    pub(super) fn run(self, out: &Output) -> Outcome {
        match self.code {
            Some(code) => one(find(&code)?, out)?,
            None => all(out)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `R0007`, `r7` and `7` mean the same.
fn find(text: &str) -> Outcome<Kind> {
    let digits = text.trim().trim_start_matches(['R', 'r']);
    let code = digits
        .parse::<u32>()
        .map(|number| format!("R{number:04}"))
        .unwrap_or_else(|_| text.to_uppercase());
    Kind::ALL.iter().copied().find(|kind| kind.code() == code).ok_or_else(|| {
        let near = did_you_mean(&code, Kind::ALL.iter().map(|kind| kind.code()));
        missing(format!("there is no code {text:?}{near}; `relevo explain` lists them"))
    })
}

fn page(kind: Kind) -> String {
    let found = PAGES.iter().find(|(code, _)| *code == kind.code());
    found.map_or_else(
        || format!("# {}: {}\n\nClass: {}.", kind.code(), kind.title(), kind.class()),
        |(_, text)| (*text).to_owned(),
    )
}

fn one(kind: Kind, out: &Output) -> std::io::Result<()> {
    match out.json {
        true => out.json(&json!({"code": kind.code(), "title": kind.title(), "class": kind.class().as_str(), "page": page(kind)})),
        false => out.line(page(kind).trim_end()),
    }
}

fn all(out: &Output) -> std::io::Result<()> {
    if out.json {
        let view = |kind: &Kind| json!({"code": kind.code(), "title": kind.title(), "class": kind.class().as_str()});
        return out.json(&Kind::ALL.iter().map(view).collect::<Vec<_>>());
    }
    let row = |kind: &Kind| {
        vec![kind.code().to_owned(), kind.class().to_string(), kind.title().to_owned()]
    };
    let columns = [Column::Whole("CODE"), Column::Whole("CLASS"), Column::Wrapped("MEANING")];
    out.table(&columns, Kind::ALL.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_however_it_is_written() {
        for text in ["R0007", "r7", "7", " r0007 "] {
            assert_eq!(find(text).unwrap(), Kind::SchemaMissing);
        }
        assert!(find("R9999").is_err());
    }

    #[test]
    fn every_kind_has_a_page_that_names_it() {
        for kind in Kind::ALL {
            assert!(
                PAGES.iter().any(|(code, text)| *code == kind.code() && text.contains(code)),
                "{}",
                kind.code()
            );
        }
    }
}
