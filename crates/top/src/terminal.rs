//! The terminal: its modes, its keys, signals.
//!
//! One thread draws and decides. Others wait: for keys, for signals, for the gateway. All end with the program.

use std::io::{self, Stdout};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use anyhow::{Context, anyhow};
use ratatui::Terminal;
use ratatui::backend::{CrosstermBackend, TestBackend};
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::app::{App, News, Order, Range, Step};
use crate::draw::draw;
use crate::worker::{self, Tell};
use crate::{Gateway, Look};

/// Events that may wait to be drawn. More: memory, when a terminal takes nothing.
const WAITING_MAX: usize = 64;

/// What the drawing thread waits for.
enum Input {
    News(News),
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    Signal(i32),
    /// The keys cannot be read any more.
    Unreadable(io::Error),
}

/// Why it ended.
enum End {
    Quit,
    Signal(i32),
}

/// Shows the gateway until the person at the terminal has seen enough. A signal that ends programs ends this
/// one after the terminal is as it was.
///
/// # Errors
/// The gateway does not answer at the start, or the terminal fails.
pub fn run(gateway: Gateway, look: Look, range: Range) -> anyhow::Result<()> {
    let mut app = App::new(look, range);
    for news in worker::all(&gateway, range).map_err(|why| anyhow!(why))? {
        app.news(news);
    }
    let (inputs, waiting) = sync_channel(WAITING_MAX);
    watch_signals(inputs.clone())?;
    let orders = begin_worker(gateway, range, inputs.clone());
    end_at_panics();
    // Also what was done before something failed is undone.
    let end = begin().and_then(|mut terminal| {
        begin_keys(inputs);
        show(&mut terminal, &mut app, &waiting, &orders)
    });
    ratatui::restore();
    match end? {
        End::Quit => Ok(()),
        End::Signal(signal) => {
            emulate_default_handler(signal)?;
            Ok(())
        }
    }
}

/// A frame as text. Without a height, all rows are in it.
///
/// # Errors
/// The gateway does not answer.
pub fn once(
    gateway: &Gateway,
    look: Look,
    range: Range,
    width: u16,
    height: Option<u16>,
) -> anyhow::Result<String> {
    let mut app = App::new(look, range);
    app.still = true;
    for news in worker::all(gateway, range).map_err(|why| anyhow!(why))? {
        app.news(news);
    }
    if app.has_sites() {
        // Rates of sites are what two looks differ by.
        std::thread::sleep(BETWEEN_LOOKS);
        app.news(worker::look_once(gateway));
    }
    let rows = u16::try_from(app.names().len()).unwrap_or(u16::MAX);
    let height = height.unwrap_or_else(|| rows.saturating_add(REST).min(HEIGHT_MAX));
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| draw(frame, &app))?;
    Ok(text(terminal.backend().buffer()))
}

/// Time between the two looks of one frame about sites. Longer: rates are steadier, the frame comes later.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Lines of a frame with room for all, beside the rows.
const REST: u16 = 35;
/// Most lines of a frame as text: as many sites as a hub can have.
const HEIGHT_MAX: u16 = 12_000;

/// The lines of a frame, without blanks at their ends and empty lines at its end.
pub fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut out = String::new();
    for y in 0..area.height {
        let mut line = String::new();
        let mut covered = 0;
        for x in 0..area.width {
            let symbol = buffer[(x, y)].symbol();
            // A wide character covers the cells behind it.
            if covered == 0 {
                line.push_str(symbol);
                covered = ratatui::text::Span::raw(symbol).width().saturating_sub(1);
            } else {
                covered -= 1;
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let end = out.trim_end().len();
    out.truncate(end);
    out.push('\n');
    out
}

fn begin() -> anyhow::Result<Shown> {
    enable_raw_mode().context("cannot prepare the terminal")?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    Ok(Terminal::new(CrosstermBackend::new(io::stdout()))?)
}

/// A panic of any thread gives the terminal back, is told, and ends the program.
fn end_at_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Nobody draws any more.
        let mut held = io::stdout().lock();
        let _ = execute!(held, Show);
        ratatui::restore();
        tell(info);
        std::process::exit(PANICKED);
    }));
}

/// The exit code of a program of Rust that panics.
const PANICKED: i32 = 101;

fn begin_worker(gateway: Gateway, range: Range, inputs: SyncSender<Input>) -> Sender<Order> {
    let (orders, taken) = channel();
    std::thread::spawn(move || {
        let tell: Tell = Arc::new(move |news| inputs.send(Input::News(news)).is_ok());
        worker::run(&gateway, range, &taken, &tell);
    });
    orders
}

fn begin_keys(inputs: SyncSender<Input>) {
    std::thread::spawn(move || {
        loop {
            let input = match event::read() {
                Ok(Event::Key(key)) => Input::Key(key),
                Ok(Event::Resize(..)) => Input::Resized,
                Ok(_) => continue,
                Err(error) => Input::Unreadable(error),
            };
            let last = matches!(input, Input::Unreadable(_));
            if inputs.send(input).is_err() || last {
                return;
            }
        }
    });
}

fn watch_signals(inputs: SyncSender<Input>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot watch signals")?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let _ = inputs.try_send(Input::Signal(signal));
            // A terminal that takes nothing, as after Ctrl-S, must not keep this program alive.
            std::thread::sleep(STUCK);
            let _ = disable_raw_mode();
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}

/// How long the drawing thread may take to end after a signal. Longer: a slow terminal is left as it was, and one
/// that takes nothing keeps the program for longer.
const STUCK: Duration = Duration::from_secs(2);

type Shown = Terminal<CrosstermBackend<Stdout>>;

fn show(
    terminal: &mut Shown,
    app: &mut App,
    waiting: &Receiver<Input>,
    orders: &Sender<Order>,
) -> anyhow::Result<End> {
    loop {
        terminal
            .draw(|frame| draw(frame, app))
            .context("cannot write to the terminal")?;
        let mut next = Some(waiting.recv().context("all threads have ended")?);
        // One frame for all that has come meanwhile.
        while let Some(input) = next {
            if let Some(end) = take(terminal, app, input, orders)? {
                return Ok(end);
            }
            next = waiting.try_recv().ok();
        }
    }
}

fn take(
    terminal: &mut Shown,
    app: &mut App,
    input: Input,
    orders: &Sender<Order>,
) -> anyhow::Result<Option<End>> {
    match input {
        Input::News(news) => app.news(news),
        Input::Key(key) if is_control(key, 'l') => begin_anew(terminal)?,
        Input::Key(key) if is_control(key, 'z') => stop(terminal)?,
        Input::Key(key) => match app.key(key) {
            Step::Stay => {}
            Step::Do(order) => {
                let _ = orders.send(order);
            }
            Step::Quit => return Ok(Some(End::Quit)),
        },
        // The next frame asks for the size itself.
        Input::Resized => {}
        Input::Signal(SIGINT) => return Ok(Some(End::Quit)),
        Input::Signal(signal) => return Ok(Some(End::Signal(signal))),
        Input::Unreadable(error) => return Err(error).context("cannot read the keys"),
    }
    Ok(None)
}

fn is_control(key: KeyEvent, letter: char) -> bool {
    key.code == KeyCode::Char(letter) && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Stops as any program does at Ctrl-Z, and goes on after `fg`.
fn stop(terminal: &mut Shown) -> anyhow::Result<()> {
    terminal.show_cursor()?;
    ratatui::restore();
    emulate_default_handler(SIGTSTP)?;
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    begin_anew(terminal)
}

/// Draws everything again. `Terminal::clear` would ask the terminal where its cursor is, and the thread that
/// reads keys would take the answer.
fn begin_anew(terminal: &mut Shown) -> anyhow::Result<()> {
    execute!(io::stdout(), Clear(ClearType::All))?;
    *terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    Ok(())
}
