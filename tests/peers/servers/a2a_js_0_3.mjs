// Server of a2a-js 0.3 with an executor that behaves like the sample. Arguments: a port and a binding.
import { randomUUID } from 'node:crypto';
import { AGENT_CARD_PATH } from 'a2a-js-0.3';
import {
  DefaultPushNotificationSender,
  DefaultRequestHandler,
  InMemoryPushNotificationStore,
  InMemoryTaskStore,
} from 'a2a-js-0.3/server';
import { agentCardHandler, jsonRpcHandler, restHandler, UserBuilder } from 'a2a-js-0.3/server/express';
import express from 'express';

const [port, binding] = [Number(process.argv[2]), process.argv[3]];

class SampleExecutor {
  waiting = new Map();

  async execute({ userMessage, taskId, contextId, task }, bus) {
    const ids = { taskId, contextId };
    const status = (state, said) => ({
      state,
      timestamp: new Date().toISOString(),
      ...(said && {
        message: { kind: 'message', messageId: randomUUID(), role: 'agent', parts: [{ kind: 'text', text: said }], ...ids },
      }),
    });
    const show = (state, said, final = false) =>
      bus.publish({ kind: 'status-update', ...ids, status: status(state, said), final });
    const add = (artifactId, text, append, lastChunk) =>
      bus.publish({ kind: 'artifact-update', ...ids, artifact: { artifactId, parts: [{ kind: 'text', text }] }, append, lastChunk });
    if (!task) bus.publish({ kind: 'task', id: taskId, contextId, status: status('submitted'), history: [userMessage] });
    const said = userMessage.parts.map((part) => part.text).join('');
    const [word, number] = said.split(' ');
    show('working');
    if (word === 'ask') {
      show('input-required', 'Which colour?', true);
      bus.finished();
      return;
    }
    if (word === 'fail') throw new Error('a secret of the agent');
    if (word === 'wait') {
      await new Promise((resolve) => this.waiting.set(taskId, resolve));
      show('canceled', undefined, true);
      bus.finished();
      return;
    }
    if (word === 'count') for (let n = 0; n < number; n++) add('counts', `${n} `, n > 0, n === number - 1);
    else add('answer', task ? `${said} it is` : said, false, true);
    show('completed', undefined, true);
    bus.finished();
  }

  cancelTask = async (taskId) => this.waiting.get(taskId)?.();
}

const card = {
  name: 'Sample Agent',
  description: 'Does what its messages say.',
  version: '1.0.0',
  protocolVersion: '0.3.0',
  url: `http://127.0.0.1:${port}/a2a`,
  preferredTransport: binding,
  capabilities: { streaming: true, pushNotifications: true },
  defaultInputModes: ['text/plain'],
  defaultOutputModes: ['text/plain'],
  skills: [{ id: 'sample', name: 'Sample', description: 'Counts, asks, waits, fails.', tags: ['sample'] }],
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
