//! `shards`: makes maps of shards, and moves slots from one shard to another.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use server::{Maps, Moved, Mover, MoverOptions, Shard, ShardMap, SlotSet};

use crate::output::{Failure, Output, note};
use crate::route::login;

/// Subcommands of `shards`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Makes the first map: the shards have equal parts of the hash slots
    ///
    /// Their primaries run, with `serve --shard NAME`. A database with entries is the only shard of its first map: add others
    /// then, and move slots.
    Create(CreateArgs),
    /// Adds a shard without slots, or replaces the nodes of a shard
    Add(AddArgs),
    /// Prints the map, and what the primary of each shard says of its slots
    Show(Place),
    /// Moves slots to another shard, while both serve
    Move(MoveArgs),
    /// Goes on with a move whose mover has ended
    ///
    /// Without a move it gives each shard the slots of the map.
    Resume(ResumeArgs),
}

/// The maps, and how their primaries are reached.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// Folder of the maps, or URL of a bucket
    maps: String,
    /// File with NAME PASSWORD of a user with write=*
    #[arg(long, value_name = "FILE")]
    login: Option<PathBuf>,
    /// Milliseconds for which it waits for the primary of a shard
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    wait: u64,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    nodes_tls: crate::tls::NodeArgs,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    identity: crate::tls::IdentityArgs,
    /// Print each step
    #[arg(long)]
    verbose: bool,
}

/// Arguments of `create`.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    place: Place,
    /// The shards, with the addresses of their nodes; `NAME=@FILE` names a file of them, one a line
    #[arg(required = true, value_name = "NAME=NODE,NODE...", value_parser = shard)]
    shard: Vec<Shard>,
}

/// Arguments of `add`.
#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    place: Place,
    /// The shard, with the addresses of its nodes
    #[arg(value_name = "NAME=NODE,NODE...", value_parser = shard)]
    shard: Shard,
}

/// Arguments of `move`.
#[derive(Debug, clap::Args)]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    place: Place,
    /// The slots, all of one shard
    #[arg(long, value_name = "RANGES", value_parser = slots)]
    slots: SlotSet,
    /// The shard that gets them
    #[arg(long, value_name = "NAME")]
    to: String,
}

/// Arguments of `resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    place: Place,
    /// End the move without its effect; refused once the slots are of the new owner
    #[arg(long)]
    undo: bool,
}

fn shard(text: &str) -> Result<Shard, String> {
    Shard::parse(text).map_err(|error| error.to_string())
}

fn slots(text: &str) -> Result<SlotSet, String> {
    SlotSet::parse(text).map_err(|error| error.to_string())
}

fn mover(place: &Place) -> Result<Mover, Failure> {
    let mut options = MoverOptions {
        login: place.login.as_ref().map(login).transpose()?,
        wait: Duration::from_millis(place.wait),
        ..MoverOptions::default()
    };
    #[cfg(feature = "tls")]
    {
        options.tls = place.identity.shown(&place.nodes_tls);
    }
    if place.verbose {
        options.on_step = Arc::new(|step| {
            note(format_args!("siltstone: {step}"));
            Ok(())
        });
    }
    Ok(Mover::new(Maps::open(&place.maps)?, options)?)
}

fn line(out: &mut Output, text: &str) -> Result<(), Failure> {
    out.line(text, &Value::Null)
}

fn print_map(out: &mut Output, map: &ShardMap, said: &[String]) -> Result<(), Failure> {
    line(out, &format!("map {}", map.number()))?;
    for (place, shard) in map.shards().iter().enumerate() {
        let slots = map.slots_of(place);
        let nodes = shard.nodes.join(",");
        line(out, &format!("{}\t{} slots\t{slots}\t{nodes}", shard.name, slots.len()))?;
        if let Some(said) = said.get(place) {
            line(out, &format!("\t{said}"))?;
        }
    }
    if let Some(moving) = map.moving_text() {
        line(out, &moving)?;
    }
    Ok(())
}

fn print_moved(out: &mut Output, moved: &Moved) -> Result<(), Failure> {
    let pause = moved.pause.as_secs_f64() * 1e3;
    let text = format!(
        "copied {} entries, {} bytes; the slots were not served for {pause:.1} ms",
        moved.entries, moved.bytes
    );
    line(out, &text)
}

/// Runs a subcommand.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    let mut out = Output::new(false);
    let done = match command {
        Command::Create(args) => {
            let map = mover(&args.place)?.create(args.shard.clone())?;
            print_map(&mut out, &map, &[])
        }
        Command::Add(args) => {
            let map = mover(&args.place)?.add(args.shard.clone())?;
            print_map(&mut out, &map, &[])
        }
        Command::Show(place) => {
            let (map, said) = mover(place)?.show()?;
            print_map(&mut out, &map, &said)
        }
        Command::Move(args) => {
            print_moved(&mut out, &mover(&args.place)?.move_slots(&args.slots, &args.to)?)
        }
        Command::Resume(args) => match mover(&args.place)?.resume(args.undo)? {
            Some(moved) => print_moved(&mut out, &moved),
            None => line(&mut out, "no slots are on their way"),
        },
    };
    done.and_then(|()| out.finish())
}
