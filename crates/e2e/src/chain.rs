//! A site behind a relay: a relay in the place of a topology's site, and a branch behind it.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use ropewalk_testbed::branch::DIRECT;
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::{HUB, HUB_V6, SERVER};
use ropewalk_testbed::traffic::Endpoints;
use ropewalk_testbed::{Branch, LinkSpec, Namespace, TopologySpec};

use crate::Ground;

const PATIENCE: Duration = Duration::from_secs(15);

/// Hub and relay, running, and a branch on which nothing runs yet. Gateways go first.
#[derive(Debug)]
pub struct Chain {
    /// The relay's gateway.
    pub relay: Gateway,
    /// The hub's gateway.
    pub hub: Gateway,
    /// What is behind the relay.
    pub branch: Branch,
    /// Namespaces and links of hub and relay.
    pub ground: Ground,
}

impl Chain {
    /// With links from the branch to the relay, links from there to the hub, and maybe one from the
    /// branch past the relay.
    ///
    /// # Errors
    /// If a program is missing or a part does not start.
    pub fn new(purpose: &str, hops: [Vec<LinkSpec>; 2], direct: Option<&LinkSpec>) -> Result<Self> {
        Self::invited(purpose, hops, direct, Gateway::invite_relay)
    }

    /// The same with a token that `invite` gets from the hub.
    ///
    /// # Errors
    /// If a program is missing or a part does not start.
    pub fn invited(
        purpose: &str,
        hops: [Vec<LinkSpec>; 2],
        direct: Option<&LinkSpec>,
        invite: fn(&Gateway, &str) -> Result<String>,
    ) -> Result<Self> {
        let [near, far] = hops;
        let ground = Ground::new(&TopologySpec::new(purpose, far))?;
        let topology = &ground.topology;
        let branch = Branch::build(topology, None, "boat", &near, direct)?;
        let (directory, spec) = (topology.directory(), GatewaySpec::default());
        let mut hub = Gateway::hub(topology.hub(), directory, &spec)?;
        hub.start()?;
        let token = invite(&hub, "harbour")?;
        let named = ("harbour", token.as_str());
        let site = topology.site();
        let mut relay = Gateway::relay(site, directory, named, &branch.relay(), &spec)?;
        relay.start()?;
        relay.wait_paths(topology.uplinks().len(), PATIENCE)?;
        Ok(Self {
            relay,
            hub,
            branch,
            ground,
        })
    }

    /// A site with a tunnel to the hub. One of its uplinks is its tunnel to the relay (the first
    /// of the gateways). The other uplink leads past the relay and is slower. So what needs to be
    /// quick goes over the relay.
    ///
    /// # Errors
    /// If a program is missing or a part does not start.
    pub fn nested(purpose: &str) -> Result<(Self, Gateway, Gateway)> {
        let near = |seed| LinkSpec::steady(30.0, Duration::from_millis(5)).with_seed(seed);
        let direct = LinkSpec::steady(30.0, Duration::from_millis(25)).with_seed(3);
        let chain = Self::new(purpose, [vec![near(1)], vec![near(2)]], Some(&direct))?;
        let first = GatewaySpec {
            tunnel: "interface = \"torelay0\"".into(),
            network: format!("routes = [\"{HUB}/32\", \"{HUB_V6}/128\"]"),
            ..GatewaySpec::default()
        };
        let token = chain.relay.invite("boat")?;
        let inner = chain.site("boat-relay", &token, &first, 1)?;
        let second = GatewaySpec {
            uplinks: format!("include = [\"{DIRECT}\", \"torelay0\"]"),
            ..GatewaySpec::default()
        };
        let token = chain.hub.invite("boat")?;
        let site = chain.site("boat", &token, &second, 2)?;
        Ok((chain, inner, site))
    }

    /// A site on the branch that has joined with `token`, running, with so many paths up.
    ///
    /// # Errors
    /// If it does not start, or its paths do not come up.
    pub fn site(
        &self,
        name: &str,
        token: &str,
        spec: &GatewaySpec,
        paths: usize,
    ) -> Result<Gateway> {
        let (namespace, directory) = (self.branch.namespace(), self.ground.topology.directory());
        let mut site = Gateway::site(namespace, directory, name, token, spec)?;
        site.start()?;
        site.wait_paths(paths, PATIENCE)?;
        Ok(site)
    }

    /// A site on the branch with a path over every link to the relay.
    ///
    /// # Errors
    /// If it does not start, or its paths do not come up.
    pub fn plain_site(&self) -> Result<Gateway> {
        let token = self.relay.invite("boat")?;
        let spec = GatewaySpec::default();
        self.site("boat", &token, &spec, self.branch.links().len())
    }

    /// Where the branch's hosts are.
    #[must_use]
    pub fn boat(&self) -> &Namespace {
        self.branch.namespace()
    }

    /// Where the server behind the hub is.
    #[must_use]
    pub fn server(&self) -> &Namespace {
        self.ground.topology.server()
    }

    /// From the branch to the server.
    #[must_use]
    pub fn to_server(&self) -> Endpoints {
        ends(self.boat(), self.server(), SERVER.into())
    }
}

/// From `client` to `server`.
#[must_use]
pub fn ends(client: &Namespace, server: &Namespace, server_address: IpAddr) -> Endpoints {
    Endpoints {
        client: client.clone(),
        server: server.clone(),
        server_address,
        device: None,
    }
}
