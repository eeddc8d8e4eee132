//! `model serve`: the embedded model behind an address.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::call::Call;
use super::failure::Failure;
use super::interrupt::Orderly;
use super::output;
use super::stdout;
use super::{block_on, model};
use crate::model::serve::{self, Served};
use backsight_engine::model::Embedded;

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (name, path) = model::find(call.get::<Option<String>>("model")?.as_deref())?;
    let embedded = Embedded::load(&path, call.tokenizer()?.as_deref())?;
    if let Some(choice) = embedded.tool_text() {
        output::talk(&format!(
            "note: the chat template of {name} ignores tools; they are written as text ({})",
            choice.name()
        ));
    }
    let mut served = Served::new(embedded, name, path.display().to_string(), call.choice("as")?);
    served.max_logprobs = call.get("max_logprobs")?;
    block_on(listen(SocketAddr::new(call.get("host")?, call.get("port")?), Arc::new(served)))?
}

/// Answers until the user stops it.
async fn listen(address: SocketAddr, served: Arc<Served>) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| {
        Failure::input(format!("{address} cannot be listened on: {error}"), "choose another --port or --host")
    };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    if !address.ip().is_loopback() {
        output::talk("note: anybody who can reach this address can use the model");
    }
    output::talk(&format!("serving {} until Ctrl-C at", served.name));
    stdout::data(format!("http://{address}\n").as_bytes())?;
    // To be stopped is how a server ends well.
    let mut orderly = Orderly::begin();
    tokio::select! {
        ended = serve::serve(listener, served) => ended.map_err(cannot),
        _ = orderly.signal() => Ok(()),
    }
}
