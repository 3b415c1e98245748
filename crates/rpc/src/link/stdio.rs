//! One JSON message per line over any pair of byte streams.

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use super::{FrameDrain, FrameSource, HandshakeGate, Link, LinkError, Liveness, MAX_MESSAGE, queue};

/// A link over a reader and a writer. The writer is shut down when the link's sink is.
pub fn link<R, W>(reader: R, writer: W, name: impl Into<String>) -> Link
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (tx, drain) = queue();
    drain.spawn_writer(|drain| write_lines(writer, drain));
    let gate = HandshakeGate::default();
    gate.open();
    Link { tx, rx: lines(BufReader::with_capacity(32 << 10, reader), MAX_MESSAGE), name: name.into(), gate, liveness: Liveness::EVIDENT }
}

async fn write_lines<W: AsyncWrite + Unpin>(mut writer: W, mut drain: FrameDrain) {
    let mut line = Vec::new();
    while let Some(frame) = drain.next().await {
        line.clear();
        line.extend_from_slice(&frame);
        line.push(b'\n');
        if writer.write_all(&line).await.is_err() || writer.flush().await.is_err() {
            return;
        }
        drain.written(frame.len());
        if line.capacity() > 1 << 20 {
            line = Vec::new();
        }
    }
    let _ = writer.shutdown().await;
}

/// Lines without their ends; blank ones are skipped, an unfinished last one is dropped.
fn lines<R: AsyncBufRead + Send + Unpin + 'static>(reader: R, limit: usize) -> FrameSource {
    Box::pin(stream::unfold(Some(reader), move |reader| async move {
        let mut reader = reader?;
        loop {
            match line(&mut reader, limit).await {
                Ok(None) => return None,
                Ok(Some(line)) if line.is_empty() => {}
                Ok(Some(line)) => return Some((Ok(line), Some(reader))),
                Err(error) => return Some((Err(error), None)),
            }
        }
    }))
}

async fn line<R: AsyncBufRead + Unpin>(reader: &mut R, limit: usize) -> Result<Option<Bytes>, LinkError> {
    let mut line = BytesMut::new();
    loop {
        let available = reader.fill_buf().await?;
        if available.is_empty() {
            return Ok(None);
        }
        let (part, used, complete) = match memchr::memchr(b'\n', available) {
            Some(end) => (&available[..end], end + 1, true),
            None => (available, available.len(), false),
        };
        if line.len() + part.len() > limit {
            return Err(LinkError::Protocol(format!("a line is longer than {limit} bytes").into()));
        }
        line.extend_from_slice(part);
        reader.consume(used);
        if complete {
            if line.last() == Some(&b'\r') {
                line.truncate(line.len() - 1);
            }
            return Ok(Some(line.freeze()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    async fn all(text: &'static [u8], limit: usize) -> Vec<Result<Bytes, String>> {
        lines(BufReader::with_capacity(3, text), limit).map(|line| line.map_err(|error| error.to_string())).collect().await
    }

    #[tokio::test]
    async fn lines_end_in_either_way_and_blank_ones_are_skipped() {
        assert_eq!(all(b"one\r\n\n\r\ntwo\nunfinished", 10).await, [Ok("one".into()), Ok("two".into())]);
    }

    #[tokio::test]
    async fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
        assert_eq!(all(b"1234\n", 4).await, [Ok("1234".into())]);
        assert_eq!(all(b"12345", 4).await, [Err("a line is longer than 4 bytes".into())]);
    }

    #[tokio::test]
    async fn frames_become_lines() {
        let (ours, theirs) = tokio::io::duplex(64);
        let (reader, writer) = tokio::io::split(ours);
        let link = link(reader, writer, "test");
        link.tx.send(&b"{}"[..]);
        let mut read = BufReader::new(theirs);
        let mut text = String::new();
        read.read_line(&mut text).await.unwrap();
        assert_eq!(text, "{}\n");
    }
}
