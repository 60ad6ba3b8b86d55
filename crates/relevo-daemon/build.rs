//! Builds the error pages of docs/errors/ into `relevo explain`.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut list = String::from("const PAGES: &[(&str, &str)] = &[\n");
    for (code, text) in pages(&folder)? {
        list.push_str(&format!("    ({code:?}, {text:?}),\n"));
    }
    list.push_str("];\n");
    let target = env::var_os("OUT_DIR")
        .map(PathBuf::from)
        .ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(target.join("error_pages.rs"), list)
}

/// `R0001.md` and so on, in order. A crate taken out of the repository has none, and explains by titles.
fn pages(folder: &Path) -> io::Result<Vec<(String, String)>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut pages = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let code = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let is_code = code.len() == 5
            && code.starts_with('R')
            && code[1..].bytes().all(|b| b.is_ascii_digit());
        if is_code && path.extension().is_some_and(|extension| extension == "md") {
            println!("cargo:rerun-if-changed={}", path.display());
            pages.push((code, fs::read_to_string(&path)?));
        }
    }
    pages.sort();
    Ok(pages)
}
