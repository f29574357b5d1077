//! `ropewalk schema`: JSON Schema of configuration files and of the API.

use clap::Args;
use ropewalk_config::Role;

const EXAMPLES: &str = "Examples:
  ropewalk schema site > site.schema.json      for an editor: #:schema site.schema.json in site.toml
  ropewalk schema api                          what `ropewalk status --json` prints
  ropewalk schema openapi > ropewalk.json      every request of the API, as OpenAPI 3.1";

/// Print the JSON Schema of a configuration file, or what the API takes and answers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SchemaArgs {
    /// Whose configuration, or `api` or `openapi`
    #[arg(value_name = "WHAT")]
    what: What,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// hub.toml
    Hub,
    /// site.toml
    Site,
    /// relay.toml
    Relay,
    /// balance.toml
    Balance,
    /// The state of a gateway, and all other types of the API
    Api,
    /// All requests of the API, as OpenAPI 3.1
    Openapi,
}

impl SchemaArgs {
    /// Prints it.
    ///
    /// # Errors
    /// The reader has gone.
    pub fn run(self) -> anyhow::Result<()> {
        let schema = match self.what {
            What::Hub => ropewalk_config::schema::of(Role::Hub),
            What::Site => ropewalk_config::schema::of(Role::Site),
            What::Relay => ropewalk_config::schema::of(Role::Relay),
            What::Balance => ropewalk_config::schema::of(Role::Balance),
            What::Api => ropewalk_api::schema::api(),
            What::Openapi => ropewalk_api::schema::openapi(env!("CARGO_PKG_VERSION")),
        };
        super::output::print(&format!("{schema:#}\n"))?;
        Ok(())
    }
}
