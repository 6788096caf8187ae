// Server of a2a-js 1.x with an executor that behaves like the sample. Arguments: a port and a binding.
import { randomUUID } from 'node:crypto';
import { AGENT_CARD_PATH, Role, TaskState } from 'a2a-js-1';
import {
  AgentEvent,
  DefaultPushNotificationSender,
  DefaultRequestHandler,
  InMemoryPushNotificationStore,
  InMemoryTaskStore,
} from 'a2a-js-1/server';
import { agentCardHandler, jsonRpcHandler, restHandler, UserBuilder } from 'a2a-js-1/server/express';
import express from 'express';

const [port, binding] = [Number(process.argv[2]), process.argv[3]];
const text = (value) => ({ content: { $case: 'text', value }, metadata: undefined, filename: '', mediaType: '' });

class SampleExecutor {
  waiting = new Map();

  async execute({ userMessage, taskId, contextId, task }, bus) {
    const ids = { taskId, contextId };
    const status = (state, said) => ({
      state,
      timestamp: new Date().toISOString(),
      message: said && {
        ...ids,
        messageId: randomUUID(),
        role: Role.ROLE_AGENT,
        parts: [text(said)],
        metadata: undefined,
        extensions: [],
        referenceTaskIds: [],
      },
    });
    const show = (state, said) =>
      bus.publish(AgentEvent.statusUpdate({ ...ids, status: status(state, said), metadata: undefined }));
    const add = (artifactId, value, append, lastChunk) => {
      const artifact = { artifactId, name: '', description: '', parts: [text(value)], metadata: undefined, extensions: [] };
      bus.publish(AgentEvent.artifactUpdate({ ...ids, artifact, append, lastChunk, metadata: undefined }));
    };
    const submitted = status(TaskState.TASK_STATE_SUBMITTED);
    const begun = { id: taskId, contextId, status: submitted, history: [userMessage], artifacts: [], metadata: undefined };
    bus.publish(AgentEvent.task(task ?? begun)); // an answer's stream too has to begin with the task, as it was stored
    const said = userMessage.parts.map((part) => part.content.value).join('');
    const [word, number] = said.split(' ');
    show(TaskState.TASK_STATE_WORKING);
    if (word === 'ask') {
      show(TaskState.TASK_STATE_INPUT_REQUIRED, 'Which colour?');
      bus.finished();
      return;
    }
    if (word === 'fail') throw new Error('a secret of the agent');
    if (word === 'wait') {
      await new Promise((resolve) => this.waiting.set(taskId, resolve));
      show(TaskState.TASK_STATE_CANCELED);
      bus.finished();
      return;
    }
    if (word === 'count') for (let n = 0; n < number; n++) add('counts', `${n} `, n > 0, n === number - 1);
    else add('answer', task ? `${said} it is` : said, false, true);
    show(TaskState.TASK_STATE_COMPLETED);
    bus.finished();
  }

  cancelTask = async (taskId) => this.waiting.get(taskId)?.();
}

const card = {
  name: 'Sample Agent',
  description: 'Does what its messages say.',
  version: '1.0.0',
  supportedInterfaces: [
    { url: `http://127.0.0.1:${port}/a2a`, protocolBinding: binding, tenant: '', protocolVersion: '1.0' },
  ],
  provider: undefined,
  capabilities: { streaming: true, pushNotifications: true, extensions: [] },
  securitySchemes: {},
  securityRequirements: [],
  defaultInputModes: ['text/plain'],
  defaultOutputModes: ['text/plain'],
  skills: [
    {
      id: 'sample',
      name: 'Sample',
      description: 'Counts, asks, waits, fails.',
      tags: ['sample'],
      examples: [],
      inputModes: [],
      outputModes: [],
      securityRequirements: [],
    },
  ],
  signatures: [],
};
const configs = new InMemoryPushNotificationStore();
const requestHandler = new DefaultRequestHandler(
  card,
  new InMemoryTaskStore(),
  new SampleExecutor(),
  undefined,
  configs,
  new DefaultPushNotificationSender(configs),
);
const handler = binding === 'JSONRPC' ? jsonRpcHandler : restHandler;
const app = express();
app.use(`/${AGENT_CARD_PATH}`, agentCardHandler({ agentCardProvider: requestHandler }));
app.use('/a2a', handler({ requestHandler, userBuilder: UserBuilder.noAuthentication }));
app.listen(port, '127.0.0.1');
