//! What each command says of itself.

pub(crate) const HELP: &str = "\
cargo xtask COMMAND

  lint       formatting, clippy, documentation, licences, tidiness: no server needed
  test       compile once, get the real servers, run everything, end with a table
  tidy       only the repository's own rules (a part of lint, one second)
  servers    only find or fetch the servers that the tests use
  sim        the simulator: `cargo xtask sim --seeds 50000`, or one seed with its account: `--seed 17`
  mutants    deliberately wrong engines, each of which the simulator must catch
  fuzz       every decoder, guided by coverage: `cargo xtask fuzz --minutes 5`, or one: `fuzz config`
  bench      how fast, against what the bare parts can do: `cargo xtask bench --long`, or short: `bench nats`
  campaign   torture on real processes for long: `cargo xtask campaign --hours 1`

Each command explains itself: `cargo xtask test --help`.
What CI runs is `.ci/run`: lint, then test.
";

pub(crate) const HELP_LINT: &str = "\
cargo xtask lint      everything below, each part even if an earlier one failed
cargo xtask tidy      only the last line

  fmt      cargo fmt --check                     mend with `cargo fmt`
  clippy   all targets, warnings are errors      (profile `checked`, shared with the tests)
  doc      rustdoc, warnings are errors
  deny     licences, bans, sources (deny.toml)   said aloud if cargo-deny is not installed
  tidy     every error code has a page in docs/errors and every page a code; no source file
           over 800 lines; no path of somebody's machine; local links in Markdown resolve;
           tests and mutants that a page names as proof exist; hooks for tests are not
           called by shipped code; no banned crate in Cargo.lock
";

pub(crate) const HELP_TEST: &str = "\
cargo xtask test [--only STAGE[,STAGE]] [--install] [--keep] [-- FILTER...]

Compiles the workspace once (profile `checked`), fetches missing servers meanwhile, runs the
stages, and ends with what ran and what could not be had.

  --only STAGE   unit          tests inside the crates: needs no server
                 integration   crates/*/tests and tests/: real PostgreSQL, PgBouncer, Python
                 sim           the seeded simulator, and its mutants, each of which must die: needs no server
                 bench         every contest of the bench, very short: it works, and each run is judged; and
                               the instruction counts of hot decisions, against bench/instructions.txt
                 docs          doc tests, and the console blocks of README.md and docs/
  --install      may install system packages with apt-get (as root; implied by CI=true as root)
  --keep         leave the servers' data folders and logs in place and print where they are
  -- FILTER      handed to every test binary, e.g. `-- late_commit --nocapture`

A server that cannot be had skips its tests and is named at the end; with CI=true (or
RELEVO_REQUIRE=1) it is a failure.

Servers are kept in .cache/ of the repository ($RELEVO_CACHE chooses another folder), which
survives `cargo clean`. After the first run plain `cargo test -p CRATE` finds them too.

examples:
  cargo xtask test --only unit                 the quick round while writing code
  cargo xtask test --only integration -- lease just the tests with `lease` in their name
";

pub(crate) const HELP_PROOF: &str = "\
cargo xtask sim [--seeds N] [--first S] [--threads T]    many seeds; ends with what was explored
cargo xtask sim --seed S                                 one seed with all its options and its account
cargo xtask mutants [--seeds N] [--afresh]               every wrong engine, with the seed that caught it; seeds
                                                         known to catch are tried first, or found anew
cargo xtask campaign --hours H                           kills, cuts, zombies, late commits on real servers;
                                                         writes a report

The same seed always does the same. A mutant that survives its seeds fails, and so does the right
engine if any seed breaks one of its promises.
";

pub(crate) const HELP_FUZZ: &str = "\
cargo xtask fuzz [TARGET...] [--minutes N]

Runs each target (all of them, if none is named) for N minutes (1) under libFuzzer. Needs a C++ compiler, and
compiles everything once more into target/fuzz/. An input that breaks a promise is kept under
target/fuzz/found/: mend what it broke, and put it into fuzz/corpus/TARGET/, where the tests replay it.

examples:
  cargo xtask fuzz config --minutes 10
  nice cargo xtask fuzz --minutes 5
";

pub(crate) const HELP_SERVERS: &str = "\
cargo xtask servers [--install]

Finds or fetches the servers that the tests use and prints, for each, the variable that hands
it to them and its place. Setting that variable yourself chooses another server:

  RELEVO_PG_18_BIN=/opt/pg18/bin cargo test -p relevo-stores

  --install      may install system packages with apt-get (as root; implied by CI=true as root)
";

pub(crate) const HELP_BENCH: &str = "\
cargo xtask bench [WHAT...] [--long] [--rounds N] [--json FILE]
cargo xtask bench instructions [--afresh]
cargo xtask bench pictures FILE

Builds the bench with optimisations and runs it on servers of its own: PostgreSQL that waits for its disk, NATS,
RabbitMQ, Kafka. Contenders take turns in one run; each run is judged for loss, order and duplicates; the table and
the JSON say medians, spreads, ratios to the goals, CPU of ours, database and broker, memory, WAL, dead tuples, queries.

  WHAT           fair, writer, drain, nats, rabbitmq, kafka, direct, latency, consume, flat, idle, scale, doorbell,
                 peers (long only); all of them, if none is named
  --long         long enough for figures. Without it a run is short: it shows that the bench works, no more
  --rounds N     turns of each contender (5 when long)
  --json FILE    where every sample goes (target/bench/figures.json, of a short run short.json); a long run keeps what
                 earlier ones measured and it does not

  instructions   counts the instructions of hot decisions under valgrind and compares them with bench/instructions.txt;
                 more than 2 % above fails. --afresh writes the file anew
  pictures       draws the SVGs of docs/performance.md from a JSON file, and writes its tables

examples:
  cargo xtask bench nats --long --rounds 3
  cargo xtask bench instructions
";
