//! Follows NetworkManager and ModemManager on the system bus.
//!
//! Invariant: nothing is sent but requests to the bus itself and for all properties, and neither starts a
//! service. A signal counts only if its sender is the service of that name.

use std::collections::BTreeMap;
use std::io;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures_core::Stream;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep_until, timeout};
use zbus::connection::Builder;
use zbus::message::{Flags, Header, Message, Type};
use zbus::{Connection, MessageStream, ObjectPath, Variant};

use crate::machine::{Machine, Manager, Said, Value};

/// How soon a bus that is not there is looked for again. Longer: less work, later to hear of a bus that comes.
const RETRY: Duration = Duration::from_secs(5);
/// How long the bus may take to take a connection. Longer: surer on a busy machine.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest body of a message that is read, bytes: some 400 interfaces of NetworkManager with their addresses. More:
/// larger machines are heard, and a list of bytes takes 60 times its length while it is read.
const BODY_MAX: usize = 2 << 20;
/// Most messages that wait to be read; the bus keeps more of them. More: memory.
const QUEUED_MAX: NonZeroUsize = NonZeroUsize::new(8).expect("it is not 0");
/// Most characters of an error that are logged: a bus or a service may have worded it.
const ERROR_MAX: usize = 200;
/// How deep lists in lists are read: ports of a modem need two. More: work.
const DEPTH_MAX: usize = 2;
/// Most members of a list that are read. More: memory.
const MEMBERS_MAX: usize = 64;

/// The interface of all properties.
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// The interface of all objects.
const OBJECTS: &str = "org.freedesktop.DBus.ObjectManager";
/// The name of the bus itself.
const BUS: &str = "org.freedesktop.DBus";

/// Properties of an object.
type Properties<'a> = BTreeMap<&'a str, Variant<'a>>;
/// Interfaces of an object.
type Interfaces<'a> = BTreeMap<&'a str, Properties<'a>>;

/// What is said of every interface, by name.
pub type Everything = BTreeMap<String, Said>;

/// Follows both services until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    /// The socket of the bus, and who follows it.
    following: Option<(PathBuf, JoinHandle<()>)>,
    sender: watch::Sender<Everything>,
}

impl Default for Watcher {
    fn default() -> Self {
        Self {
            following: None,
            sender: watch::Sender::new(Everything::new()),
        }
    }
}

impl Watcher {
    /// Follows the bus at this socket from now on, or none. It needs a runtime of tokio.
    pub fn follow(&mut self, socket: Option<&Path>) {
        if self.following.as_ref().map(|(path, _)| path.as_path()) == socket {
            return;
        }
        if let Some((_, task)) = self.following.take() {
            task.abort();
            self.sender.send_replace(Everything::new());
        }
        self.following = socket.map(|path| {
            let task = tokio::spawn(follow(path.to_owned(), self.sender.clone()));
            (path.to_owned(), task)
        });
    }

    /// What is said now, and whenever it changes.
    #[must_use]
    pub fn said(&self) -> watch::Receiver<Everything> {
        self.sender.subscribe()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.following {
            task.abort();
        }
    }
}

async fn follow(path: PathBuf, said: watch::Sender<Everything>) {
    let mut machine = Machine::default();
    // What is logged is what differs from the time before: many machines have no bus.
    let mut before = None;
    loop {
        // A task of its own: a panic of the library ends no more than this connection.
        let mut connection = JoinSet::new();
        connection.spawn(listen(path.clone(), machine, said.clone(), before));
        (machine, before) = match connection.join_next().await {
            Some(Ok((machine, end))) => (machine, Some(end)),
            Some(Err(_)) | None => {
                tracing::warn!(socket = %path.display(), "what listens to the system bus has failed: trying again");
                (Machine::default(), Some(End::Failed))
            }
        };
        publish(&machine, &said);
        let again = tokio::time::Instant::now() + RETRY;
        sleep_until(again).await;
        machine.handle_timeout(Instant::now());
        publish(&machine, &said);
    }
}

/// How listening to a bus ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There was no connection.
    None(io::ErrorKind),
    /// It ended right after it began.
    Short,
    /// It ended.
    Long,
    /// By a fault of this program.
    Failed,
}

/// Listens to the bus at this socket while it is there.
async fn listen(
    path: PathBuf,
    mut machine: Machine,
    said: watch::Sender<Everything>,
    before: Option<End>,
) -> (Machine, End) {
    let socket = path.display();
    let connection = match connect(&path).await {
        Ok(connection) => connection,
        Err(error) => {
            let end = End::None(error.kind());
            if before != Some(end) {
                tracing::debug!(%socket, error = short(&error), "no system bus");
            }
            return (machine, end);
        }
    };
    let repeated = matches!(before, Some(End::Short | End::Failed));
    if !repeated {
        tracing::info!(%socket, "listening to NetworkManager and ModemManager, where they run");
    }
    let begin = Instant::now();
    let error = Bus::new(connection).listen(&mut machine, &said).await;
    let now = Instant::now();
    let end = if now - begin < RETRY {
        End::Short
    } else {
        End::Long
    };
    if !repeated || end == End::Long {
        tracing::info!(%socket, error = short(&error), "the system bus is gone");
    }
    for manager in Manager::ALL {
        machine.handle_gone(manager, now);
    }
    (machine, end)
}

/// An error as a line of bounded length without control characters.
fn short(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let characters = text.chars().take(ERROR_MAX);
    characters.flat_map(char::escape_debug).collect()
}

fn publish(machine: &Machine, said: &watch::Sender<Everything>) {
    let new = machine.said();
    said.send_if_modified(|old| {
        let changed = *old != new;
        *old = new;
        changed
    });
}

async fn connect(path: &Path) -> io::Result<Connection> {
    let stream = UnixStream::connect(path).await?.into_std()?;
    let built = Builder::unix_stream(stream).max_queued(QUEUED_MAX);
    let built = timeout(ANSWER, built.build()).await;
    match built {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the bus does not answer",
        )),
    }
}

/// A connection to the bus.
struct Bus {
    connection: Connection,
    messages: MessageStream,
    /// The request for the objects of each service that waits for its answer.
    asked: [Option<NonZeroU32>; 2],
    /// The unique name of each service that is there.
    owners: [Option<String>; 2],
    ignored: u64,
}

impl Bus {
    fn new(connection: Connection) -> Self {
        Self {
            messages: MessageStream::from(&connection),
            connection,
            asked: [None; 2],
            owners: [None, None],
            ignored: 0,
        }
    }

    /// Listens until the bus is gone. Why it is.
    async fn listen(
        &mut self,
        machine: &mut Machine,
        said: &watch::Sender<Everything>,
    ) -> zbus::Error {
        if let Err(error) = self.begin().await {
            return error;
        }
        loop {
            let due = machine.poll_timeout();
            let message = tokio::select! {
                message = next(&mut self.messages) => message,
                () = at(due) => {
                    machine.handle_timeout(Instant::now());
                    publish(machine, said);
                    continue;
                }
            };
            let handled = match message {
                Some(Ok(message)) => self.handle(&message, machine).await,
                Some(Err(error)) => Err(error),
                None => return io::Error::from(io::ErrorKind::UnexpectedEof).into(),
            };
            if let Err(error) = handled {
                return error;
            }
            if machine.ignored() != self.ignored {
                self.ignored = machine.ignored();
                tracing::debug!(
                    count = self.ignored,
                    "values of D-Bus that are not understood"
                );
            }
            publish(machine, said);
        }
    }

    /// Asks for signals, and for what is so now. In this order: nothing is missed between the two.
    async fn begin(&mut self) -> zbus::Result<()> {
        for manager in Manager::ALL {
            let (name, _) = address(manager);
            // Signals of NetworkManager that matter are few of many: statistics, scans and others stay away.
            let of_service = format!("type='signal',sender='{name}',interface=");
            let properties = |interface: &str| {
                format!("{of_service}'{PROPERTIES}',member='PropertiesChanged',arg0='{interface}'")
            };
            let mut rules = vec![
                format!(
                    "type='signal',sender='{BUS}',interface='{BUS}',member='NameOwnerChanged',arg0='{name}'"
                ),
                format!("{of_service}'{OBJECTS}'"),
            ];
            rules.extend(
                interfaces(manager)
                    .iter()
                    .map(|interface| properties(interface)),
            );
            rules.push(format!(
                "{of_service}'{}',member='StateChanged'",
                interfaces(manager)[0]
            ));
            for rule in rules {
                let call = Message::method_call("/org/freedesktop/DBus", "AddMatch");
                let call = call.interface(BUS).destination(BUS);
                self.connection.send(&call.build(&rule)?).await?;
            }
            self.ask(manager).await?;
        }
        Ok(())
    }

    /// Asks a service that is there for all its objects.
    async fn ask(&mut self, manager: Manager) -> zbus::Result<()> {
        let (name, path) = address(manager);
        let call = Message::method_call(path, "GetManagedObjects")
            .interface(OBJECTS)
            .destination(name)
            .with_flags(Flags::NO_AUTO_START)
            .build(&())?;
        self.asked[manager as usize] = Some(call.primary_header().serial_num());
        self.connection.send(&call).await
    }

    /// # Errors
    /// The bus is gone. What is not understood is counted.
    async fn handle(&mut self, message: &Message, machine: &mut Machine) -> zbus::Result<()> {
        let header = message.header();
        let is_read = message.body().len() <= BODY_MAX;
        match message.message_type() {
            Type::MethodReturn | Type::Error => {
                let serial = header.reply_serial();
                let asked = |manager: &Manager| self.asked[*manager as usize] == serial;
                let Some(manager) = serial.and_then(|_| Manager::ALL.into_iter().find(asked))
                else {
                    return Ok(());
                };
                self.asked[manager as usize] = None;
                // An error: the service is not there, or lets nobody ask.
                if message.message_type() == Type::MethodReturn {
                    self.owners[manager as usize] = header.sender().map(ToString::to_string);
                    if !is_read || take_objects(manager, message, machine).is_err() {
                        machine.handle_unknown();
                    }
                }
                Ok(())
            }
            Type::Signal if !is_read => {
                machine.handle_unknown();
                Ok(())
            }
            Type::Signal => match self.handle_signal(&header, message, machine) {
                Ok(Some(manager)) => self.ask(manager).await,
                Ok(None) => Ok(()),
                Err(_) => {
                    machine.handle_unknown();
                    Ok(())
                }
            },
            Type::MethodCall => Ok(()),
        }
    }

    /// Takes a signal in. The service that is to be asked, as it has started.
    ///
    /// # Errors
    /// The signal is not as documented.
    fn handle_signal(
        &mut self,
        header: &Header<'_>,
        message: &Message,
        machine: &mut Machine,
    ) -> zbus::Result<Option<Manager>> {
        let sender = header.sender().map(|name| name.as_str());
        let member = header
            .member()
            .map(|name| name.as_str())
            .unwrap_or_default();
        let body = message.body();
        if sender == Some(BUS) {
            if member != "NameOwnerChanged" {
                return Ok(None);
            }
            let (name, _, owner): (&str, &str, &str) = body.deserialize()?;
            let named = |manager: &Manager| address(*manager).0 == name;
            let manager = Manager::ALL.into_iter().find(named);
            let Some(manager) = manager else {
                return Ok(None);
            };
            self.owners[manager as usize] = None;
            machine.handle_gone(manager, Instant::now());
            return Ok((!owner.is_empty()).then_some(manager));
        }
        let owner = |manager: &Manager| self.owners[*manager as usize].as_deref() == sender;
        if sender.is_none() || !Manager::ALL.iter().any(owner) {
            return Ok(None);
        }
        let path = header.path().map(|path| path.as_str()).unwrap_or_default();
        let interface = header
            .interface()
            .map(|name| name.as_str())
            .unwrap_or_default();
        match (interface, member) {
            (PROPERTIES, "PropertiesChanged") => {
                let (of, changed, _): (&str, Properties<'_>, Vec<&str>) = body.deserialize()?;
                for (property, new) in &changed {
                    machine.handle_property(path, of, property, value(new, DEPTH_MAX));
                }
            }
            (OBJECTS, "InterfacesAdded") => {
                let (path, added): (ObjectPath<'_>, Interfaces<'_>) = body.deserialize()?;
                for (interface, property, new) in flat(&added) {
                    machine.handle_property(path.as_str(), interface, property, new);
                }
            }
            (OBJECTS, "InterfacesRemoved") => {
                let (path, removed): (ObjectPath<'_>, Vec<&str>) = body.deserialize()?;
                for interface in removed {
                    machine.handle_removed(path.as_str(), interface);
                }
            }
            (_, "StateChanged") => {
                let new = state(interface, message)?;
                machine.handle_property(path, interface, "State", Value::Number(new));
            }
            _ => {}
        }
        Ok(None)
    }
}

/// The new state in a signal: NetworkManager has it first, ModemManager second.
fn state(interface: &str, message: &Message) -> zbus::Result<i64> {
    let body = message.body();
    if interfaces(Manager::Modem).contains(&interface) {
        let (_, new, _): (i32, i32, u32) = body.deserialize()?;
        Ok(new.into())
    } else {
        let (new, _, _): (u32, u32, u32) = body.deserialize()?;
        Ok(new.into())
    }
}

fn take_objects(manager: Manager, message: &Message, machine: &mut Machine) -> zbus::Result<()> {
    let body = message.body();
    let objects: BTreeMap<ObjectPath<'_>, Interfaces<'_>> = body.deserialize()?;
    let all = objects.iter().flat_map(|(path, interfaces)| {
        let properties = flat(interfaces);
        properties.map(move |(interface, property, new)| (path.as_str(), interface, property, new))
    });
    machine.handle_objects(manager, all);
    Ok(())
}

fn flat<'a>(interfaces: &'a Interfaces<'_>) -> impl Iterator<Item = (&'a str, &'a str, Value)> {
    interfaces.iter().flat_map(|(interface, properties)| {
        let properties = properties.iter();
        properties.map(move |(property, new)| (*interface, *property, value(new, DEPTH_MAX)))
    })
}

/// A value as far as it can matter, with lists in lists up to this depth.
fn value(variant: &Variant<'_>, depth: usize) -> Value {
    let list = |members: &[Variant<'_>]| match depth.checked_sub(1) {
        Some(depth) => {
            let members = members.iter().take(MEMBERS_MAX);
            Value::List(members.map(|member| value(member, depth)).collect())
        }
        None => Value::Other,
    };
    match variant {
        Variant::U8(number) => Value::Number((*number).into()),
        Variant::I16(number) => Value::Number((*number).into()),
        Variant::U16(number) => Value::Number((*number).into()),
        Variant::I32(number) => Value::Number((*number).into()),
        Variant::U32(number) => Value::Number((*number).into()),
        Variant::I64(number) => Value::Number(*number),
        Variant::U64(number) => i64::try_from(*number).map_or(Value::Other, Value::Number),
        Variant::Bool(flag) => Value::Flag(*flag),
        Variant::Str(text) => Value::Text(text.as_str().to_owned()),
        Variant::ObjectPath(path) => Value::Text(path.as_str().to_owned()),
        Variant::Array(array) => list(array.inner()),
        Variant::Structure(fields) => list(fields.fields()),
        Variant::F64(_)
        | Variant::Signature(_)
        | Variant::Variant(_)
        | Variant::Dict(_)
        | Variant::Fd(_) => Value::Other,
    }
}

/// The name of a service on the bus, and the path of the object that lists the others.
const fn address(manager: Manager) -> (&'static str, &'static str) {
    match manager {
        Manager::Network => ("org.freedesktop.NetworkManager", "/org/freedesktop"),
        Manager::Modem => (
            "org.freedesktop.ModemManager1",
            "/org/freedesktop/ModemManager1",
        ),
    }
}

/// The interfaces of a service whose properties matter; the first has the signal of a changed state.
const fn interfaces(manager: Manager) -> &'static [&'static str] {
    match manager {
        Manager::Network => &[
            "org.freedesktop.NetworkManager.Device",
            "org.freedesktop.NetworkManager.Device.Wireless",
            "org.freedesktop.NetworkManager.AccessPoint",
        ],
        Manager::Modem => &["org.freedesktop.ModemManager1.Modem"],
    }
}

async fn next(messages: &mut MessageStream) -> Option<zbus::Result<Message>> {
    std::future::poll_fn(|context| Pin::new(&mut *messages).poll_next(context)).await
}

/// Waits until then; for ever without a time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_word_is_logged_short_and_without_control_characters() {
        let text = short(&format!(
            "Unknown command: \u{1b}[2J\n{}",
            "x".repeat(1 << 20)
        ));
        assert!(
            text.starts_with("Unknown command: \\u{1b}[2J\\nxx"),
            "{text}"
        );
        assert!(text.len() < 2 * ERROR_MAX && !text.contains(char::is_control));
    }
}
