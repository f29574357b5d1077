//! The `ropewalk` program.

fn main() -> std::process::ExitCode {
    ropewalk_gateway::cli::main()
}
