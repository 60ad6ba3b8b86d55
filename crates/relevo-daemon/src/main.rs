//! The `relevo` binary; everything it does is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    relevo_daemon::cli::main()
}
