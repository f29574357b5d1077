//! `ropewalk-bulk`: bulk transfer over QUIC, to measure what real QUIC makes of a network.
//!
//! Like an HTTP/3 download: one connection per flow, one bidirectional stream in it, a short
//! request, then data as fast as the network takes it. The QUIC stack is `quinn` with its defaults
//! (packet threshold 3, segmentation offload on) except for windows large enough for long paths.

#![forbid(unsafe_code)]

mod args;
mod get;
mod pin;
mod request;
mod serve;
mod settings;
mod steps;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = args::Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(async {
            match args.command {
                args::Command::Serve(serve) => serve::run(&serve).await,
                args::Command::Get(get) => get::run(&get).await,
            }
        }),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropewalk-bulk: {error:#}");
            ExitCode::FAILURE
        }
    }
}
