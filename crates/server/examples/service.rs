//! A primary and a reader of one folder, and what a client sees of them: levels, tokens, and a promotion.
//!
//! `cargo run -p siltstone-server --example service`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use server::{Options, Place, Role, Server};

/// A client that sends lines, as a terminal would. Libraries for Redis do the same in the binary form.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(server: &Server) -> std::io::Result<Client> {
        Ok(Client(BufReader::new(TcpStream::connect(server.address())?)))
    }

    /// The reply to a command that has one value.
    fn call(&mut self, command: &str) -> std::io::Result<String> {
        write!(self.0.get_mut(), "{command}\r\n")?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        // A value comes after its length.
        if line.starts_with('$') && !line.starts_with("$-") {
            line.clear();
            self.0.read_line(&mut line)?;
        }
        Ok(line.trim_end().to_owned())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let options = Options { listen: "127.0.0.1:0".to_owned(), ..Options::default() };
    let place = Place::folder(folder.path());
    let first = Server::start(place.clone(), Role::Primary, options.clone())?;
    let second = Server::start(place, Role::Reader, options)?;
    let mut writer = Client::new(&first)?;
    let mut reader = Client::new(&second)?;

    assert_eq!(writer.call("SET alice admin")?, "+OK");
    // The reader has everything that was acknowledged before the read began.
    assert_eq!(reader.call("SCID.GET alice LEVEL 1")?, "admin");

    // A token of the write, which the application passes on: the reader has at least that.
    assert_eq!(writer.call("SET alice author")?, "+OK");
    let token = writer.call("SCID.TOKEN")?;
    assert_eq!(reader.call(&format!("SCID.GET alice TOKEN {token}"))?, "author");

    // Writes go to the primary. The reader takes over while both run, and all connections stay.
    assert!(reader.call("SET alice none")?.starts_with("-READONLY"));
    println!("the new primary begins at {}", reader.call("SCID.PROMOTE")?);
    assert_eq!(reader.call("SET alice owner")?, "+OK");
    assert!(writer.call("SET alice none")?.starts_with("-READONLY"));
    assert_eq!(writer.call("SCID.GET alice LEVEL 1")?, "owner");

    second.stop()?;
    first.stop()?;
    Ok(())
}
