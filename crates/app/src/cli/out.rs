//! Standard output and questions. A closed pipe ends the command with exit 0: whoever reads has seen enough.

use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};

/// Writes `text` and flushes it.
pub fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// The same of bytes, which names of files may be.
pub fn print_bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        complain(&format!("cannot write to standard output: {error}"));
        std::process::exit(1);
    }
}

/// Writes one JSON object, over several lines.
pub fn print_json(value: &serde_json::Value) {
    print(&format!("{value:#}\n"));
}

/// Writes one JSON object on one line: an item of a stream.
pub fn print_json_line(value: &serde_json::Value) {
    print(&format!("{value}\n"));
}

/// Writes a line for people to standard error; when that is gone, nobody listens.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether a person sees what is complained about.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Whether to go ahead: on a terminal somebody is asked, elsewhere nobody is there to ask.
pub fn confirmed(question: &str) -> bool {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return true;
    }
    let _ = write!(io::stderr(), "{question} Type yes to go on: ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).is_ok() && answer.trim().eq_ignore_ascii_case("yes")
}
