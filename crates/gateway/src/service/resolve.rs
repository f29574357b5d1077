//! Turns the hub's endpoints into addresses.
//!
//! Invariants: the order of the endpoints is kept, and each address comes once. Endpoints that are
//! addresses do not need the resolver. Under a kill switch the resolver of the machine reaches
//! nobody before the tunnel is up. Then the queries of this module go to the name servers of the
//! uplinks themselves, with the mark of the tunnel, for names of the hub only.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use ropewalk_config::values::HostPort;
use ropewalk_host::kill_switch::TUNNEL_MARK;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, TYPE};

/// Longest time one name may take. Longer: slow resolvers are heard, later starts with a dead one.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for one name server. Longer: slow ones are heard, later starts with a dead one.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Most addresses of a hub. More: a hub with many addresses is reached by any of them, dead ones
/// cost attempts.
const ADDRESSES_MAX: usize = 16;
/// Most name servers that are asked. More: a dead one matters less, more time for a name that is not there.
const SERVERS_MAX: usize = 8;
/// Longest answer that is read, bytes (RFC 1035 §4.2.1 allows 512 without EDNS).
const ANSWER_BYTES_MAX: usize = 4_096;
/// Where the name servers of this machine are listed. The first is that of systemd-resolved, which puts
/// itself into the other.
const SERVER_FILES: [&str; 2] = ["/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"];

/// The addresses of `endpoints`, and what went wrong with the others. Names that the machine's
/// resolver does not find are asked of `servers`, past a kill switch.
pub async fn resolve(endpoints: &[HostPort], servers: &[IpAddr]) -> (Vec<SocketAddr>, Vec<String>) {
    let (mut places, mut failures) = (Vec::new(), Vec::new());
    for found in resolve_each(endpoints, servers).await {
        match found {
            Ok(found) => places.push(found),
            Err(why) => failures.push(why),
        }
    }
    (together(&places), failures)
}

/// What was found for an endpoint, or why nothing was, in words.
pub type Found = Result<Vec<SocketAddr>, String>;

/// The same for each endpoint.
pub async fn resolve_each(endpoints: &[HostPort], servers: &[IpAddr]) -> Vec<Found> {
    let mut all = Vec::new();
    for endpoint in endpoints {
        all.push(match endpoint.host.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![SocketAddr::new(ip, endpoint.port)]),
            Err(_) => {
                let found = look_up(endpoint, servers).await;
                found.map_err(|error| format!("{}: {error}", endpoint.host))
            }
        });
    }
    all
}

/// The addresses of all endpoints, each once and `ADDRESSES_MAX` at most.
#[must_use]
pub fn together(places: &[Vec<SocketAddr>]) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in places.iter().flatten() {
        if !addresses.contains(address) && addresses.len() < ADDRESSES_MAX {
            addresses.push(*address);
        }
    }
    addresses
}

async fn look_up(endpoint: &HostPort, servers: &[IpAddr]) -> Result<Vec<SocketAddr>, String> {
    let lookup = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port));
    let error = match tokio::time::timeout(TIMEOUT, lookup).await {
        Ok(Ok(found)) => return Ok(found.collect()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer from the resolver".to_owned(),
    };
    for server in servers {
        let server = SocketAddr::new(*server, 53);
        let asked = ask(server, &endpoint.host, Some(TUNNEL_MARK));
        match tokio::time::timeout(SERVER_TIMEOUT, asked).await {
            Ok(Ok(found)) if !found.is_empty() => {
                let with_port = |ip| SocketAddr::new(ip, endpoint.port);
                return Ok(found.into_iter().map(with_port).collect());
            }
            Ok(Err(error)) => tracing::debug!(%server, error = format!("{error:#}"), "not asked"),
            Ok(Ok(_)) | Err(_) => {}
        }
    }
    Err(error)
}

/// The name servers of this machine, those of uplinks included. Addresses of this machine itself are
/// left out: a resolver there asks others, which a kill switch refuses.
#[must_use]
pub fn name_servers() -> Vec<IpAddr> {
    let mut servers = Vec::new();
    for file in SERVER_FILES {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        for server in listed(&text) {
            if !server.is_loopback() && !servers.contains(&server) && servers.len() < SERVERS_MAX {
                servers.push(server);
            }
        }
    }
    servers
}

/// The name servers in a text as of resolv.conf(5); those of an interface are left out.
#[must_use]
pub fn listed(text: &str) -> Vec<IpAddr> {
    let words = text.lines().map(|line| {
        let mut words = line.split_whitespace();
        (words.next(), words.next())
    });
    let servers = words.filter_map(|(key, value)| (key == Some("nameserver")).then_some(value?));
    servers.filter_map(|text| text.parse().ok()).collect()
}

/// Asks a name server for the addresses of a name (RFC 1035), IPv4 first.
///
/// # Errors
/// The server cannot be asked, or its answer is none.
async fn ask(server: SocketAddr, host: &str, mark: Option<u32>) -> anyhow::Result<Vec<IpAddr>> {
    let domain = socket2::Domain::for_address(server);
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
    if let Some(mark) = mark {
        ropewalk_io::set_mark(&socket, mark).context("cannot mark a query")?;
    }
    socket.set_nonblocking(true)?;
    socket.connect(&server.into())?;
    let socket = tokio::net::UdpSocket::from_std(socket.into())?;
    let mut found = Vec::new();
    for kind in [TYPE::A, TYPE::AAAA] {
        let id = crate::engine::random_u64()? as u16;
        socket.send(&question(id, host, kind)?).await?;
        let mut buffer = [0; ANSWER_BYTES_MAX];
        loop {
            let length = socket.recv(&mut buffer).await?;
            // What is no answer to this query may be a late one, or forged.
            if let Some(addresses) = answer(&buffer[..length], id) {
                found.extend(addresses);
                break;
            }
        }
    }
    Ok(found)
}

fn question(id: u16, host: &str, kind: TYPE) -> anyhow::Result<Vec<u8>> {
    let name = Name::new(host).with_context(|| format!("{host:?} is no name"))?;
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let question = Question::new(name, kind.into(), CLASS::IN.into(), false);
    packet.questions.push(question);
    Ok(packet.build_bytes_vec()?)
}

/// The addresses in an answer to the query `id`; `None` if the bytes are none.
fn answer(bytes: &[u8], id: u16) -> Option<Vec<IpAddr>> {
    let packet = Packet::parse(bytes).ok()?;
    if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) {
        return None;
    }
    let records = packet.answers.iter();
    let addresses = records.filter_map(|record| {
        if let RData::A(a) = &record.rdata {
            Some(IpAddr::from(a.address.to_be_bytes()))
        } else if let RData::AAAA(aaaa) = &record.rdata {
            Some(IpAddr::from(aaaa.address.to_be_bytes()))
        } else {
            None
        }
    });
    Some(addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_need_no_resolver_and_come_once() {
        let endpoint = |text: &str| text.parse::<HostPort>().unwrap();
        let endpoints = ["[2001:db8::1]:1", "192.0.2.1:2", "192.0.2.1:2"].map(endpoint);
        let (addresses, failures) = resolve(&endpoints, &[]).await;
        let text: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["[2001:db8::1]:1", "192.0.2.1:2"]);
        assert!(failures.is_empty());
    }

    #[tokio::test]
    async fn names_that_do_not_exist_are_told() {
        let (addresses, failures) =
            resolve(&["no-such-host.invalid:1".parse().unwrap()], &[]).await;
        assert!(addresses.is_empty());
        assert!(
            failures[0].starts_with("no-such-host.invalid: "),
            "{failures:?}"
        );
    }

    #[test]
    fn servers_are_read_from_resolv_conf() {
        let text = "# nameserver 192.0.2.9\nsearch lan\nnameserver 192.0.2.53\n\
                    nameserver\t2001:db8::53 \nnameserver fe80::1%eth0\nnameserver 127.0.0.53\n";
        let found: Vec<_> = listed(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.53", "2001:db8::53", "127.0.0.53"]);
    }

    #[tokio::test]
    async fn a_name_server_is_asked_for_both_families_and_strays_are_passed_over() {
        let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let answers = tokio::spawn(async move {
            let mut kinds = Vec::new();
            for data in [
                RData::A(simple_dns::rdata::A {
                    address: 0xc000_0207,
                }),
                RData::AAAA(simple_dns::rdata::AAAA { address: 1 }),
            ] {
                let mut buffer = [0; 512];
                let (length, from) = server.recv_from(&mut buffer).await.unwrap();
                let query = Packet::parse(&buffer[..length]).unwrap();
                let asked = query.questions[0].clone();
                kinds.push((asked.qname.to_string(), asked.qtype));
                // A query is no answer, and neither is one of another number.
                server.send_to(&buffer[..length], from).await.unwrap();
                for id in [query.id().wrapping_add(1), query.id()] {
                    let mut reply = Packet::new_reply(id);
                    let name = Name::new_unchecked("hub.example.org");
                    reply.answers.push(simple_dns::ResourceRecord::new(
                        name,
                        CLASS::IN,
                        60,
                        data.clone(),
                    ));
                    let bytes = reply.build_bytes_vec().unwrap();
                    server.send_to(&bytes, from).await.unwrap();
                }
            }
            kinds
        });
        let found = ask(address, "hub.example.org", None).await.unwrap();
        let text: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["192.0.2.7", "::1"]);
        let kinds = answers.await.unwrap();
        let name = "hub.example.org".to_owned();
        assert_eq!(
            kinds,
            [(name.clone(), TYPE::A.into()), (name, TYPE::AAAA.into())]
        );
    }
}
