//! Asking the model something aside: with all that it knows of the thread, without tools, and without a trace in it.

use outpost_thread::said;
use outpost_wire::SharedError;

use super::{Driver, Stop};
use crate::live::{CommandError, CommandReply, Sample, Sampled};

impl Driver {
    pub(super) async fn sample(&mut self, sample: Sample, mut reply: CommandReply<Sampled>) -> Result<(), Stop> {
        if self.thread.turn.is_some() {
            let _ = reply.send(Err(CommandError::Busy));
            return Ok(());
        }
        let model = match self.shared.models.get(self.thread.settings.model_provider.as_deref()) {
            Ok(model) => model,
            Err(error) => {
                let _ = reply.send(Err(CommandError::Invalid(SharedError::new(error))));
                return Ok(());
            }
        };
        let mut prompt = self.request_aside(&sample.prompt).await?;
        prompt.effort = sample.effort.or(prompt.effort);
        // The thread goes on meanwhile. It ends with its caller.
        tokio::spawn(async move {
            let answer = tokio::select! {
                answer = model.ask(&prompt, &|_| {}) => answer,
                () = reply.closed() => return,
            };
            let sampled = answer.map_err(|error| CommandError::Invalid(SharedError::new(error))).map(|answer| {
                let text: String = answer.items.iter().filter_map(said).collect();
                Sampled { text: Some(text).filter(|text| !text.is_empty()), usage: answer.usage }
            });
            let _ = reply.send(sampled);
        });
        Ok(())
    }
}
