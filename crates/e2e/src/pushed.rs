//! Connections over which a server sends when it likes, such as those that wait for messages.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Result;
use ropewalk_testbed::Namespace;
use ropewalk_testbed::topology::SERVER;

/// How many: one after the other, what they send again comes at all times of some 200 ms.
const COUNT: usize = 100;
/// Time between two of them, seldom longer than what they are to find.
const STAGGER: Duration = Duration::from_millis(2);
/// How long what was sent may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Both ends of some connections.
#[derive(Debug)]
pub struct Pushed {
    ends: Vec<(TcpStream, TcpStream)>,
}

impl Pushed {
    /// Opens them from `client` to `server`, whose address is [`SERVER`].
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn open(client: &Namespace, server: &Namespace) -> Result<Self> {
        let listener = server.enter(|| TcpListener::bind(SocketAddr::new(SERVER.into(), 0)))??;
        let address = listener.local_addr()?;
        let open = || {
            let near = client.enter(|| TcpStream::connect_timeout(&address, PATIENCE))??;
            near.set_read_timeout(Some(PATIENCE))?;
            Ok((near, listener.accept()?.0))
        };
        let ends = (0..COUNT).map(|_| open()).collect::<Result<_>>()?;
        Ok(Self { ends })
    }

    /// The server sends a byte over each.
    ///
    /// # Errors
    /// If one was ended.
    pub fn send(&mut self) -> Result<()> {
        for (_, far) in &mut self.ends {
            far.write_all(b"x")?;
            std::thread::sleep(STAGGER);
        }
        Ok(())
    }

    /// The client takes a byte from each.
    ///
    /// # Errors
    /// If one was ended, or nothing comes.
    pub fn receive(&mut self) -> Result<()> {
        for (near, _) in &mut self.ends {
            near.read_exact(&mut [0])?;
        }
        Ok(())
    }
}
