//! One connection: bytes here to the relay there and back, each direction until its end.

use std::sync::Arc;

use anyhow::{anyhow, bail};
use bytes::Bytes;
use outpost_environment::{EnvironmentError, ProcessEvent, RemoteProcess};
use outpost_wire::exec::process::{Stream, WriteStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// As much as an executor takes for a process that does not read without taking room from others. What comes back is read there only
/// once the program here has taken what came before: a connection that stands still holds up no other, in neither direction.
const CHUNK: usize = 64 << 10;
/// No line that a relay says is as long as this.
const LONGEST_REMARK: usize = 4 << 10;

/// Returns when both directions are over. Fails if bytes are missing; the program that is connected here is then shown a reset.
pub(super) async fn carry(connection: TcpStream, process: RemoteProcess) -> anyhow::Result<()> {
    let _ = connection.set_nodelay(true);
    let process = Arc::new(process);
    let (read, write) = connection.into_split();
    let mut up = tokio::spawn(up(read, process.clone()));
    // Without a result if the program here is gone; nothing reads from the relay any more then.
    let carried = {
        let down = down(write, &process);
        tokio::pin!(down);
        // Asked once only: a task has one answer.
        let ended_here = tokio::select! {
            done = &mut down => Err(done),
            ended = &mut up => Ok(ended),
        };
        match ended_here {
            // The program here ended its direction in good order.
            Ok(Ok(Ok(()))) => Some(down.await),
            Ok(_) => None,
            Err(done) => {
                up.abort();
                // With it goes its half of the connection.
                let _ = up.await;
                Some(done)
            }
        }
    };
    let Some((write, done)) = carried else {
        end(&process).await;
        return Ok(());
    };
    if done.is_err() {
        end(&process).await;
        // An orderly end before the reset would be all that the program sees.
        let _ = write.as_ref().set_zero_linger();
        write.forget();
    }
    done
}

/// Ends the relay, whatever it does.
async fn end(process: &RemoteProcess) {
    if let Err(error) = process.terminate().await {
        tracing::debug!(%error, "a relay was not ended");
    }
}

/// Fails if the program here is gone.
async fn up(mut from: OwnedReadHalf, process: Arc<RemoteProcess>) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            break;
        }
        match process.write(Bytes::copy_from_slice(&buffer[..count])).await {
            Ok(WriteStatus::StdinClosed | WriteStatus::UnknownProcess) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
    }
    // Closing a pipe twice is closing it once.
    while let Err(EnvironmentError::Unknown { .. }) = process.close_stdin().await {}
    Ok(())
}

/// What the relay says besides the bytes themselves.
#[derive(Default)]
struct Remarks {
    text: String,
    /// The other side sends no more after so many bytes.
    end: Option<u64>,
    lost: Option<String>,
}

impl Remarks {
    fn read(&mut self, bytes: &[u8]) {
        self.text.push_str(&String::from_utf8_lossy(bytes));
        while let Some((line, rest)) = self.text.split_once('\n') {
            match line.split_once(' ') {
                Some(("end", count)) => self.end = count.parse().ok(),
                Some(("lost", why)) => self.lost = Some(why.to_owned()),
                _ => {}
            }
            self.text = rest.to_owned();
        }
        if self.text.len() > LONGEST_REMARK {
            self.text.clear();
        }
    }
}

type Down = (OwnedWriteHalf, anyhow::Result<()>);

async fn down(mut to: OwnedWriteHalf, process: &RemoteProcess) -> Down {
    let done = pass(&mut to, process).await;
    (to, done)
}

async fn pass(to: &mut OwnedWriteHalf, process: &RemoteProcess) -> anyhow::Result<()> {
    let (mut passed, mut remarks, mut is_shut) = (0_u64, Remarks::default(), false);
    while let Some(event) = process.next().await {
        match event {
            ProcessEvent::Output { stream: Stream::Stderr, bytes } => remarks.read(&bytes),
            ProcessEvent::Output { bytes, .. } => {
                passed += bytes.len() as u64;
                if to.write_all(&bytes).await.is_err() {
                    // The program here reads no more; that is its own affair.
                    end(process).await;
                    return Ok(());
                }
            }
            ProcessEvent::Gap { bytes } => {
                let count = bytes.map_or_else(|| "bytes".to_owned(), |bytes| format!("{bytes} bytes"));
                bail!("{count} were lost while there was no connection");
            }
            ProcessEvent::Exited { .. } => {}
            ProcessEvent::Closed => break,
            ProcessEvent::Lost { reason } => bail!("{reason}"),
        }
        if !is_shut && remarks.end == Some(passed) {
            is_shut = true;
            let _ = to.shutdown().await;
        }
    }
    match (remarks.lost, remarks.end) {
        (Some(why), _) => Err(anyhow!("{why}")),
        (None, Some(end)) if end == passed => Ok(()),
        (None, Some(end)) => Err(anyhow!("{} of {end} bytes are missing", end.saturating_sub(passed))),
        // It was ended before it could say anything.
        (None, None) => Err(anyhow!("the relay there was ended")),
    }
}
